package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// removeTree unlinks a directory at once; what is below it dies by a job.
func (m *Machine) removeTree(t *tx, op *wire.RemoveTree) (*wire.MetaResponse, error) {
	t.ignoresQuota = true
	dir, child, err := m.entry(t, "remove tree", op.GetParent(), op.GetName())
	if err != nil {
		return nil, err
	}
	if child.Typ != record.TypeDirectory {
		return nil, fail(moraine.NotDirectory, "remove tree", op.GetName(), "")
	}
	if child.Sealed {
		return m.removeStepTree(t, child, op.GetForce())
	}
	if err := t.mayRemoveSteps(dir, child, op.GetForce()); err != nil {
		return nil, err
	}
	owner := moraine.SessionID(0)
	if child.Entries > 0 {
		if owner, err = t.jobOwner("remove tree"); err != nil {
			return nil, err
		}
	}
	m.unlink(t, dir, op.GetName(), child)
	return removeReply(child), m.dropTreeOf(t, child, op.GetName(), owner)
}

// dropTree lets a directory that nothing names any more die with all that is
// below it: by a job, unless it is empty.
func (m *Machine) dropTree(t *tx, dir *record.Inode, subject string) error {
	return m.dropTreeOf(t, dir, subject, 0)
}

// dropTreeOf is dropTree by a job that counts among those of a session.
func (m *Machine) dropTreeOf(t *tx, dir *record.Inode, subject string, owner moraine.SessionID) error {
	if dir.Entries == 0 {
		return t.delInode(dir)
	}
	dir.Detach()
	dir.Nlink = 0
	t.putInode(dir)
	job, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_REMOVE_TREE, subject: subject, owner: owner})
	if err != nil {
		return err
	}
	t.put(t.k.detached(job, dir.Id), []byte{record.DentryVersion})
	return nil
}

// removeBudget bounds a piece of a removal so that what small files have dies with
// them (see discard), and not by a job for each.
const removeBudget = discardBudget - 64

// runRemoveTree does about limit records of a job made by dropTree: it takes
// entries out of one detached directory at a time; directories that it meets
// become detached themselves, so that no depth is too great.
func (m *Machine) runRemoveTree(t *tx, job moraine.JobID, limit int) (n int, finished bool, err error) {
	whole, err := t.speaks(levelWholeFiles)
	if err != nil {
		return 0, false, err
	}
	if whole {
		limit = min(limit, removeBudget)
	}
	before := len(t.order)
	for len(t.order)-before < limit {
		keys, err := t.keysUnder(t.k.detachedOf(job), 1)
		if err != nil {
			return 0, false, err
		}
		if len(keys) == 0 {
			return len(t.order) - before, true, nil
		}
		dir, err := t.inode(moraine.InodeID(record.LastU64(keys[0])))
		if err != nil {
			return 0, false, damaged(err)
		}
		if err := m.emptyDir(t, job, dir, before+limit); err != nil {
			return 0, false, err
		}
		if dir.Entries > 0 {
			t.putInode(dir)
			continue
		}
		t.del(keys[0])
		if err := t.delInode(dir); err != nil {
			return 0, false, err
		}
	}
	return len(t.order) - before, false, nil
}

// emptyDir takes entries out of dir until it is empty or the command has
// written stop keys. The caller writes dir.
func (m *Machine) emptyDir(t *tx, job moraine.JobID, dir *record.Inode, stop int) error {
	names, entries, err := t.listDir(dir.Id, "", max((stop-len(t.order))/4, 1))
	if err != nil {
		return err
	}
	for n, name := range names {
		child, err := t.inode(entries[n].Inode)
		if err != nil {
			return damaged(err)
		}
		t.unname(dir, name, child)
		if child.Typ == record.TypeDirectory {
			if err := t.markRemovedIndexIn(child); err != nil {
				return err
			}
			child.Detach()
			child.Nlink = 0
			t.putInode(child)
			t.put(t.k.detached(job, child.Id), []byte{record.DentryVersion})
		} else if err := m.dropName(t, child, name); err != nil {
			return err
		}
		if len(t.order) >= stop {
			break
		}
	}
	return nil
}
