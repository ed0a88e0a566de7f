package state

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// IsOfJob reports whether a job is about a file, and a node has it leased now: it moves the
// file between tiers, rewrites or packs its stripes, or checks the checkpoint whose directory
// has it.
func (m *Machine) IsOfJob(r Reader, node string, id moraine.JobID, file moraine.InodeID) (bool, error) {
	v := m.view(r)
	now, err := m.ClusterTime(r)
	if err != nil {
		return false, err
	}
	j, err := v.job(id)
	if err != nil || j == nil || j.State != wire.JobState_JOB_STATE_RUNNING || j.Holder != node || j.Until <= now {
		return false, err
	}
	switch {
	case record.OfFile(j.Kind):
		return j.Target == uint64(file), nil
	case j.Kind == wire.JobKind_JOB_KIND_REWRITE:
		return j.Target == uint64(file) || slices.Contains(j.RewriteTask().GetFiles(), uint64(file)), nil
	case j.Kind == wire.JobKind_JOB_KIND_COMMIT_STEP:
		s, err := v.stepRecord(j.Step)
		if err != nil || s == nil {
			return false, err
		}
		i, err := v.inode(file)
		if moraineKind(err) == moraine.NotFound {
			return false, nil
		}
		return err == nil && i.Sealed && i.Parent == s.Dir, err
	}
	return false, nil
}

// OwnedBy reports whether a session holds a file that has no name.
func (m *Machine) OwnedBy(r Reader, session moraine.SessionID, file moraine.InodeID) (bool, error) {
	i, err := m.view(r).inode(file)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && session != 0 && i.Owner == session, err
}
