package record

import (
	"errors"

	"github.com/morainefs/moraine"
)

// StepLoss is a place in a file of a checkpoint; zero: nothing is lost.
type StepLoss struct {
	Inode  moraine.InodeID
	Offset int64
}

var errNoLoss = errors.New("a lost step names no file")

// Lost reports whether a committed step has lost bytes.
func (s *Step) Lost() bool { return s.Loss != StepLoss{} }
