package moraine

import (
	"context"
	"errors"
	"strings"
)

// Kind classifies an error for decisions: package client retries by it, a
// mount maps it to an errno, an S3 endpoint to a status. The numbers are on
// the wire: append only, never renumber.
type Kind uint8

const (
	Internal         Kind = iota // a fault of ours, or one that no other kind names
	InvalidArgument              // the request can never succeed as it is
	NotFound                     // the thing named does not exist
	Exists                       // the thing to be made exists already
	NotDirectory                 // a path component, or the target, is no directory
	IsDirectory                  // the target is a directory
	NotEmpty                     // the directory has entries
	PermissionDenied             // the certificate, token or mode does not allow it
	Unauthenticated              // no valid certificate or token was shown
	ReadOnly                     // the certificate, device or tree takes no writes
	CrossTenant                  // a rename, link or clone from one tenant's tree to another's (EXDEV)
	CrossPartition               // the operation spans two partitions
	NameTooLong                  // a name or a path is past its bound
	TooLarge                     // a message, chunk, file or batch is past its bound
	NoSpace                      // no device, or no metadata disk, has room
	QuotaExceeded                // the tree's quota would be exceeded
	Stale                        // the caller's view (layout, generation, grant, epoch) is no longer so: refresh, once
	SessionExpired               // the session is over: its grants and locks are gone
	NotLeader                    // this metadata node does not lead; the error may name who does
	Unavailable                  // not now: no quorum, shutting down, too few devices; retry
	Timeout                      // the deadline passed: whether it took effect is unknown
	Canceled                     // the caller gave up
	Corrupt                      // bytes do not match their checksum or their record
	Lost                         // bytes that were promised are gone from every place
	Busy                         // somebody else holds it (a run with live sessions, a job's lease)
	Fenced                       // a newer attempt, lease or epoch has taken over
	Aborted                      // a checkpoint that will never be committed
	Incomplete                   // not everything is there yet (a step whose ranks have not all sealed)
	Conflict                     // a compare-and-set found another value
	Unimplemented                // this build does not know the request
	WrongCluster                 // data or a peer of another cluster
	NewerFormat                  // written by a newer version than this one can read
	IOError                      // a disk or a network answered with an error
	NoAttribute                  // the file has no extended attribute of that name
	Misrouted                    // the partition is not served here, or the routing epoch is another: learn it, and ask again
	Immutable                    // it belongs to a checkpoint, which is removed whole or not at all (EPERM)
	kinds
)

var kindNames = [kinds]string{
	"internal error", "invalid argument", "not found", "already exists", "not a directory",
	"is a directory", "directory not empty", "permission denied", "not authenticated", "read only",
	"crosses tenants", "crosses partitions", "name too long", "too large", "no space",
	"quota exceeded", "stale", "session expired", "not the leader", "unavailable",
	"timed out", "canceled", "corrupt", "lost", "busy", "fenced", "aborted", "incomplete",
	"conflict", "not implemented", "wrong cluster", "newer format", "I/O error", "no such attribute",
	"misrouted", "immutable",
}

func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return "unknown error"
}

// Error makes a Kind an error itself, so that errors.Is(err, moraine.Stale)
// holds for every *Error of that kind.
func (k Kind) Error() string { return k.String() }

// Error is the one error type that crosses package boundaries and the wire.
type Error struct {
	// Op is the operation that failed: "chunkserver.Put", "create".
	Op string
	// Ref names the object: a path, a stripe, a device, an address.
	Ref string
	// Kind is what decisions are made on.
	Kind Kind
	// Err is the cause, or a sentence that says what to do next. May be nil.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	for _, s := range []string{e.Op, e.Ref} {
		if s != "" {
			b.WriteString(s)
			b.WriteString(": ")
		}
	}
	switch {
	case e.Err == nil:
		b.WriteString(e.Kind.String())
	case e.Kind == Internal:
		b.WriteString(e.Err.Error())
	default:
		b.WriteString(e.Kind.String())
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is e's Kind.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// KindOf returns the Kind of the outermost *Error (or Kind) in err's chain; where
// there is none, Timeout or Canceled for the end of a context, and Internal for
// anything else. err must not be nil.
func KindOf(err error) Kind {
	var e *Error
	var k Kind
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.As(err, &k):
		return k
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}
