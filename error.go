package moraine

import (
	"context"
	"errors"
	"strings"
)

// Kind classifies an error for decisions: package client decides retries by it, a mount maps it
// to an errno, an S3 endpoint to a status. The numbers are on the wire: append only, never
// renumber.
type Kind uint8

const (
	Internal         Kind = iota // a fault of Moraine, or one that no other kind names
	InvalidArgument              // the request can never succeed in this form
	NotFound                     // the thing named does not exist
	Exists                       // the name to create exists already
	NotDirectory                 // a path component, or the target, is no directory
	IsDirectory                  // the target is a directory
	NotEmpty                     // the directory has entries
	PermissionDenied             // the certificate, token or mode does not allow it
	Unauthenticated              // the peer showed no valid certificate or token
	ReadOnly                     // the certificate, device or tree takes no writes
	CrossTenant                  // a rename, link or clone from one tenant's tree to another's (EXDEV)
	CrossPartition               // the operation spans two partitions
	NameTooLong                  // a name or a path is past its bound
	TooLarge                     // a message, chunk, file or batch is past its bound
	NoSpace                      // no device, or no metadata disk, has room
	QuotaExceeded                // the tree's quota would be exceeded
	Stale                        // the caller's view (layout, generation, grant, epoch) is outdated
	SessionExpired               // the session has ended: its grants and locks are gone
	NotLeader                    // this metadata server is not the leader; the error may name the leader
	Unavailable                  // not now: no quorum, shutting down, too few devices; retry
	Timeout                      // the deadline passed: whether it took effect is unknown
	Canceled                     // the caller canceled the call
	Corrupt                      // bytes do not match their checksum or their record
	Lost                         // bytes that were promised are gone from every place
	Busy                         // another holder has it (a run with live sessions, a job's lease)
	Fenced                       // a newer attempt, lease or epoch has taken over
	Aborted                      // a checkpoint that will never be committed
	Incomplete                   // parts are missing (a step whose ranks have not all sealed)
	Conflict                     // a compare-and-set found another value
	Unimplemented                // this build does not know the request
	WrongCluster                 // data or a peer of another cluster
	NewerFormat                  // written by a newer version than this one can read
	IOError                      // a disk or a network answered with an error
	NoAttribute                  // the file has no extended attribute of that name
	Misrouted                    // wrong partition for this server, or another routing epoch: refresh it, and retry
	Immutable                    // it belongs to a checkpoint, which can only be removed whole (EPERM)
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

// String returns the kind's name, as errors and logs show it.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return "unknown error"
}

// Error makes a Kind an error itself, so that errors.Is(err, moraine.Stale) is true for every
// *Error of that kind.
func (k Kind) Error() string { return k.String() }

// Error is the one error type that crosses package boundaries and the wire.
type Error struct {
	// Op is the operation that failed: "chunkserver.Put", "create".
	Op string
	// Ref names the object: a path, a stripe, a device, an address.
	Ref string
	// Kind is what callers decide by.
	Kind Kind
	// Err is the cause, or a sentence that says what to do next. May be nil.
	Err error
}

// Error joins operation, object, kind and cause with colons. For Internal it omits the kind if
// there is a cause.
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

// KindOf returns the Kind of the outermost *Error (or Kind) in err's chain. Without one it
// returns Timeout or Canceled for the end of a context, and Internal for anything else. err
// must not be nil.
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
