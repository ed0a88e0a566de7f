package mover

import "github.com/morainefs/moraine/transport/wire"

// kindName is the kind of a job in metrics and logs.
func kindName(k wire.JobKind) string {
	switch k {
	case wire.JobKind_JOB_KIND_REPAIR:
		return "repair"
	case wire.JobKind_JOB_KIND_REBALANCE:
		return "rebalance"
	case wire.JobKind_JOB_KIND_REWRITE:
		return "rewrite"
	case wire.JobKind_JOB_KIND_COMMIT_STEP:
		return "commit-step"
	case wire.JobKind_JOB_KIND_READ_TRACKER:
		return "read-tracker"
	}
	return moveName(k)
}

func moveName(k wire.JobKind) string {
	switch k {
	case wire.JobKind_JOB_KIND_FLUSH:
		return "flush"
	case wire.JobKind_JOB_KIND_STAGE:
		return "stage"
	case wire.JobKind_JOB_KIND_EVICT:
		return "evict"
	case wire.JobKind_JOB_KIND_DELETE_OBJECT:
		return "delete-object"
	}
	return "unknown"
}
