package movers

import (
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/transport/wire"
)

// ReleaseJob updates the target of a job when the job ends.
func ReleaseJob(t *kvtx.Tx, j *record.Job, state wire.JobState, reason string) error {
	switch j.Kind {
	case wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_REBALANCE:
		return fleet.ReleaseRepairs(t, j, state == wire.JobState_JOB_STATE_FAILED)
	case wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT:
		why := ""
		if state != wire.JobState_JOB_STATE_DONE {
			why = j.Subject + ": " + reason
		}
		return tier.ChildEnded(t, j.Parent, why)
	case wire.JobKind_JOB_KIND_MOVE_TREE:
		return ckpt.TreeMoved(t, j, state)
	case wire.JobKind_JOB_KIND_ADOPT, wire.JobKind_JOB_KIND_READ_TRACKER:
		return ckpt.AdoptionEnded(t, j)
	case wire.JobKind_JOB_KIND_COMMIT_STEP:
		if state != wire.JobState_JOB_STATE_DONE {
			return ckpt.AbortUnjudged(t, j, reason)
		}
	}
	return nil
}
