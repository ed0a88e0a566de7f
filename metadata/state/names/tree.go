package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// DropTree lets a directory that nothing names any more die with all that is
// below it: by a job, unless it is empty.
func DropTree(t *kvtx.Tx, dir *record.Inode, subject string) error {
	return DropTreeOf(t, dir, subject, 0)
}

// DropTreeOf is dropTree by a job that counts among those of a session.
func DropTreeOf(t *kvtx.Tx, dir *record.Inode, subject string, owner moraine.SessionID) error {
	if dir.Entries == 0 {
		return DelInode(t, dir)
	}
	dir.Detach()
	dir.Nlink = 0
	tree.PutInode(t, dir)
	job, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_REMOVE_TREE, Subject: subject, Owner: owner})
	if err != nil {
		return err
	}
	t.Put(t.K.Detached(job, dir.Id), []byte{record.DentryVersion})
	return nil
}

// RemoveBudget bounds a piece of a removal so that what small files have dies with
// them (see discard), and not by a job for each.
const RemoveBudget = layout.DiscardBudget - 64

// RunRemoveTree does about limit records of a job made by dropTree: it takes
// entries out of one detached directory at a time; directories that it meets
// become detached themselves, so that no depth is too great.
func RunRemoveTree(t *kvtx.Tx, job moraine.JobID, limit int) (n int, finished bool, err error) {
	whole, err := t.Speaks(kvtx.LevelWholeFiles)
	if err != nil {
		return 0, false, err
	}
	if whole {
		limit = min(limit, RemoveBudget)
	}
	before := len(t.Order)
	for len(t.Order)-before < limit {
		keys, err := t.KeysUnder(t.K.DetachedOf(job), 1)
		if err != nil {
			return 0, false, err
		}
		if len(keys) == 0 {
			return len(t.Order) - before, true, nil
		}
		dir, err := tree.Inode(t, moraine.InodeID(record.LastU64(keys[0])))
		if err != nil {
			return 0, false, kvtx.Damaged(err)
		}
		if err := EmptyDir(t, job, dir, before+limit); err != nil {
			return 0, false, err
		}
		if dir.Entries > 0 {
			tree.PutInode(t, dir)
			continue
		}
		t.Del(keys[0])
		if err := DelInode(t, dir); err != nil {
			return 0, false, err
		}
	}
	return len(t.Order) - before, false, nil
}

// EmptyDir takes entries out of dir until it is empty or the command has
// written stop keys. The caller writes dir.
func EmptyDir(t *kvtx.Tx, job moraine.JobID, dir *record.Inode, stop int) error {
	names, entries, err := tree.ListDir(&t.View, dir.Id, "", max((stop-len(t.Order))/4, 1))
	if err != nil {
		return err
	}
	for n, name := range names {
		child, err := tree.Inode(t, entries[n].Inode)
		if err != nil {
			return kvtx.Damaged(err)
		}
		Unname(t, dir, name, child)
		if child.Typ == record.TypeDirectory {
			if err := tier.MarkRemovedIndexIn(t, child); err != nil {
				return err
			}
			child.Detach()
			child.Nlink = 0
			tree.PutInode(t, child)
			t.Put(t.K.Detached(job, child.Id), []byte{record.DentryVersion})
		} else if err := DropName(t, child, name); err != nil {
			return err
		}
		if len(t.Order) >= stop {
			break
		}
	}
	return nil
}
