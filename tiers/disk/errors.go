package disk

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/morainefs/moraine"
)

// wrap makes err a *moraine.Error of op on ref. It keeps the Kind of err. An error
// of the file system becomes NotFound, NoSpace or IOError.
func wrap(op, ref string, err error) error {
	var e *moraine.Error
	if errors.As(err, &e) {
		return &moraine.Error{Op: op, Ref: ref, Kind: e.Kind, Err: err}
	}
	return &moraine.Error{Op: op, Ref: ref, Kind: kindOf(err), Err: err}
}

func kindOf(err error) moraine.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return moraine.NotFound
	case isNoSpace(err):
		return moraine.NoSpace
	case errors.Is(err, context.Canceled):
		return moraine.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return moraine.Timeout
	}
	return moraine.IOError
}

// isNoSpace reports whether err says that the file system is full.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
