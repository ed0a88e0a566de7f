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

// DropTree removes an unlinked directory with everything below it: by a job, unless it is empty.
func DropTree(t *kvtx.Tx, dir *record.Inode, subject string) error {
	return DropTreeOf(t, dir, subject, 0)
}

// DropTreeOf is DropTree with a job that counts as one of a session's.
func DropTreeOf(t *kvtx.Tx, dir *record.Inode, subject string, owner moraine.SessionID) error {
	if dir.Entries == 0 {
		return delInode(t, dir)
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

// RemoveBudget bounds a piece of a removal. It is small enough that the contents of small files are
// removed in the same piece (see discard), and need no job each.
const RemoveBudget = layout.DiscardBudget - 64

// RunRemoveTree removes about limit records for a job of DropTree. It empties one detached
// directory at a time. It detaches each directory that it finds, so that depth does not matter.
func RunRemoveTree(t *kvtx.Tx, job moraine.JobID, limit int) (n int, finished bool, err error) {
	limit = min(limit, RemoveBudget)
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
		if err := emptyDir(t, job, dir, before+limit); err != nil {
			return 0, false, err
		}
		if dir.Entries > 0 {
			tree.PutInode(t, dir)
			continue
		}
		t.Del(keys[0])
		if err := delInode(t, dir); err != nil {
			return 0, false, err
		}
	}
	return len(t.Order) - before, false, nil
}

// emptyDir removes entries from dir until it is empty or the command has written stop keys. The
// caller writes dir.
func emptyDir(t *kvtx.Tx, job moraine.JobID, dir *record.Inode, stop int) error {
	names, entries, err := tree.ListDir(&t.View, dir.Id, "", max((stop-len(t.Order))/4, 1))
	if err != nil {
		return err
	}
	for n, name := range names {
		child, err := tree.Inode(t, entries[n].Inode)
		if err != nil {
			return kvtx.Damaged(err)
		}
		unname(t, dir, name, child)
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
