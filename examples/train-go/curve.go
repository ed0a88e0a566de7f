package main

import (
	"fmt"
	"os"
	"strconv"
)

// curve is the file with the losses. A step that is trained again after a restart has two lines.
type curve struct{ f *os.File }

func openCurve(path string) (*curve, error) {
	if path == "" {
		return &curve{}, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &curve{f}, err
}

// add appends a line: the step, and the loss with all its bits.
func (c *curve) add(step uint64, loss float64) error {
	if c.f == nil {
		return nil
	}
	_, err := c.f.WriteString(fmt.Sprintf("%d %s\n", step, strconv.FormatFloat(loss, 'x', -1, 64)))
	return err
}

func (c *curve) close() error {
	if c.f == nil {
		return nil
	}
	return c.f.Close()
}
