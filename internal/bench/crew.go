package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// crew is worker processes that start together.
type crew struct {
	members []*workman
}

type workman struct {
	cmd    *exec.Cmd
	start  io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
}

// hire starts a process for each work, and returns when all are ready.
func hire(ctx context.Context, e *Env, works []Work) (*crew, error) {
	c := &crew{}
	for _, w := range works {
		spec, err := json.Marshal(w)
		if err != nil {
			return nil, err
		}
		m := &workman{cmd: exec.CommandContext(ctx, e.Worker[0], append(e.Worker[1:len(e.Worker):len(e.Worker)], "--work", string(spec))...)}
		m.cmd.Stderr = &m.stderr
		if e.S3 != nil {
			m.cmd.Env = e.S3.environ()
		}
		m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if m.start, err = m.cmd.StdinPipe(); err != nil {
			return nil, err
		}
		out, err := m.cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		m.out = bufio.NewReader(out)
		if err := m.cmd.Start(); err != nil {
			return nil, errors.Join(err, c.dismiss())
		}
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		if _, err := m.out.ReadString('\n'); err != nil {
			return nil, errors.Join(fmt.Errorf("bench: worker start failed: %w\n%s", err, m.stderr.String()), c.dismiss())
		}
	}
	return c, nil
}

// work starts all workers, and returns their results.
func (c *crew) work() ([]Result, error) {
	for _, m := range c.members {
		if _, err := io.WriteString(m.start, "go\n"); err != nil {
			return nil, err
		}
	}
	var errs []error
	results := make([]Result, len(c.members))
	for i, m := range c.members {
		err := json.NewDecoder(m.out).Decode(&results[i])
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("bench: worker lost: %w\n%s", err, m.stderr.String()))
		case results[i].Error != "":
			errs = append(errs, errors.New(results[i].Error))
		}
	}
	return results, errors.Join(errs...)
}

// dismiss ends the remaining workers.
func (c *crew) dismiss() error {
	var errs []error
	for _, m := range c.members {
		_ = m.start.Close()
		errs = append(errs, m.cmd.Wait())
	}
	return errors.Join(errs...)
}

// run hires the workers, measures only their work, and dismisses them.
func (e *Env) run(ctx context.Context, works []Work) ([]Result, usage, error) {
	return e.runUnder(ctx, works, nil)
}

// runUnder is run under a condition, unless that is nil. The condition starts with
// the clock, and the function that it returns ends it with the work.
func (e *Env) runUnder(ctx context.Context, works []Work, condition func() (end func() error, err error)) ([]Result, usage, error) {
	c, err := hire(ctx, e, works)
	if err != nil {
		return nil, usage{}, err
	}
	var results []Result
	u, err := e.measure(ctx, func(context.Context) (err error) {
		if condition != nil {
			var end func() error
			if end, err = condition(); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, end()) }()
		}
		results, err = c.work()
		return err
	})
	return results, u, errors.Join(err, c.dismiss())
}
