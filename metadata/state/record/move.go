package record

import "github.com/morainefs/moraine/transport/wire"

// OfFile reports whether jobs of a kind move one file to or from the object
// tier: of each kind a file has one live job at most.
func OfFile(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_FLUSH || kind == wire.JobKind_JOB_KIND_STAGE || kind == wire.JobKind_JOB_KIND_EVICT
}

// OfTier reports whether only movers with a bucket lease jobs of a kind.
func OfTier(kind wire.JobKind) bool {
	return OfFile(kind) || kind == wire.JobKind_JOB_KIND_DELETE_OBJECT
}
