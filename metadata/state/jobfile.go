package state

import (
	"slices"

	"github.com/morainefs/moraine"
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
	if err != nil || j == nil || j.state != wire.JobState_JOB_STATE_RUNNING || j.holder != node || j.until <= now {
		return false, err
	}
	switch {
	case ofFile(j.kind):
		return j.target == uint64(file), nil
	case j.kind == wire.JobKind_JOB_KIND_REWRITE:
		return j.target == uint64(file) || slices.Contains(j.rewriteTask().GetFiles(), uint64(file)), nil
	case j.kind == wire.JobKind_JOB_KIND_COMMIT_STEP:
		s, err := v.stepRecord(j.step)
		if err != nil || s == nil {
			return false, err
		}
		i, err := v.inode(file)
		if moraineKind(err) == moraine.NotFound {
			return false, nil
		}
		return err == nil && i.sealed && i.parent == s.dir, err
	}
	return false, nil
}

// OwnedBy reports whether a session holds a file that has no name.
func (m *Machine) OwnedBy(r Reader, session moraine.SessionID, file moraine.InodeID) (bool, error) {
	i, err := m.view(r).inode(file)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && session != 0 && i.owner == session, err
}
