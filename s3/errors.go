package s3

import (
	"net/http"

	"github.com/versity/versitygw/s3err"

	"github.com/morainefs/moraine"
)

// ofKind is the S3 error for a kind. A failure that a retry may cure is a 503,
// which clients retry by themselves. A broken promise is a 500 that names it.
func ofKind(kind moraine.Kind) s3err.APIError {
	code := func(c s3err.ErrorCode) s3err.APIError { return s3err.GetAPIError(c).BaseError() }
	switch kind {
	case moraine.NotFound:
		return code(s3err.ErrNoSuchKey)
	case moraine.NotDirectory:
		return code(s3err.ErrObjectParentIsFile)
	case moraine.IsDirectory, moraine.Exists:
		return code(s3err.ErrExistingObjectIsDirectory)
	case moraine.NotEmpty:
		return code(s3err.ErrDirectoryNotEmpty)
	case moraine.PermissionDenied, moraine.Unauthenticated, moraine.ReadOnly, moraine.Immutable:
		return code(s3err.ErrAccessDenied)
	case moraine.InvalidArgument, moraine.NameTooLong:
		return code(s3err.ErrInvalidRequest)
	case moraine.TooLarge:
		return code(s3err.ErrEntityTooLarge)
	case moraine.NoSpace:
		return code(s3err.ErrNoSpaceLeftOnDevice)
	case moraine.QuotaExceeded:
		return code(s3err.ErrQuotaExceeded)
	case moraine.Unimplemented, moraine.CrossPartition:
		return code(s3err.ErrNotImplemented)
	case moraine.CrossTenant:
		return s3err.APIError{Code: "InvalidRequest", Description: "The two ends of a copy belong to different tenants.", HTTPStatusCode: http.StatusBadRequest}
	case moraine.Unavailable, moraine.Timeout, moraine.NotLeader, moraine.Misrouted, moraine.Stale, moraine.SessionExpired,
		moraine.Busy, moraine.Conflict, moraine.Canceled:
		return s3err.APIError{Code: "ServiceUnavailable", Description: "The cluster cannot do this now (" + kind.String() + "): try again.", HTTPStatusCode: http.StatusServiceUnavailable}
	case moraine.Corrupt, moraine.Lost:
		return s3err.APIError{Code: "InternalError", Description: "Bytes of this object cannot be read: " + kind.String() + ".", HTTPStatusCode: http.StatusInternalServerError}
	default:
		return code(s3err.ErrInternalError)
	}
}
