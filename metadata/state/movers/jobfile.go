package movers

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// IsOfJob reports whether a node has leased a job that concerns a file. The job moves the file
// between tiers, rewrites or packs its stripes, or checks the checkpoint with the file.
func IsOfJob(v *kvtx.View, node string, id moraine.JobID, file moraine.InodeID) (bool, error) {
	now, err := kvtx.ClusterTime(v)
	if err != nil {
		return false, err
	}
	j, err := jobs.Job(v, id)
	if err != nil || j == nil || j.State != wire.JobState_JOB_STATE_RUNNING || j.Holder != node || j.Until <= now {
		return false, err
	}
	switch {
	case record.OfFile(j.Kind), j.Kind == wire.JobKind_JOB_KIND_READ_TRACKER:
		return j.Target == uint64(file), nil
	case j.Kind == wire.JobKind_JOB_KIND_REWRITE:
		return j.Target == uint64(file) || slices.Contains(j.RewriteTask().GetFiles(), uint64(file)), nil
	case j.Kind == wire.JobKind_JOB_KIND_COMMIT_STEP:
		s, err := tree.StepRecord(v, j.Step)
		if err != nil || s == nil {
			return false, err
		}
		i, err := tree.ReadInode(v, file)
		if kvtx.MoraineKind(err) == moraine.NotFound {
			return false, nil
		}
		return err == nil && i.Sealed && i.Parent == s.Dir, err
	}
	return false, nil
}

// OwnedBy reports whether a session owns a file without a name.
func OwnedBy(r *kvtx.View, session moraine.SessionID, file moraine.InodeID) (bool, error) {
	i, err := tree.ReadInode(r, file)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && session != 0 && i.Owner == session, err
}
