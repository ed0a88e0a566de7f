package cli

import (
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// Exit codes. They mean the same for every command.
const (
	ExitFine     = 0
	ExitFailed   = 1 // also `ckpt diff`: the checkpoints differ
	ExitWrongUse = 2
	ExitDegraded = 3 // `cluster status` and `demo`: the cluster works, with less protection than promised; `fsck`: it found something
)

// ExitError ends the process with its own exit code; err may be nil.
type ExitError struct {
	Code int
	Err  error
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the error; nil where there is only an exit code.
func (e *ExitError) Unwrap() error { return e.Err }

// IsWrongUse reports whether the cause of err is the caller's command line or settings.
func IsWrongUse(err error) bool {
	var w *wrongUse
	return errors.As(err, &w)
}

// UsageError is an error in the caller's command line or settings: exit code 2.
func UsageError(format string, args ...any) error {
	return &wrongUse{fmt.Errorf(format, args...)}
}

// AsWrongUse marks err as caused by the command line or the settings. It keeps the text.
func AsWrongUse(err error) error { return &wrongUse{err} }

// wrongUse is an error that the command line or the settings cause.
type wrongUse struct{ err error }

// Error implements error.
func (e *wrongUse) Error() string { return e.err.Error() }

// Unwrap returns the error without the mark.
func (e *wrongUse) Unwrap() error { return e.err }

// Is makes a wrong use equal to moraine.InvalidArgument.
func (e *wrongUse) Is(target error) bool {
	return target == moraine.InvalidArgument
}
