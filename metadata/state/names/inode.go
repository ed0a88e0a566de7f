package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/locks"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
)

// delInode deletes an inode's record and everything that belongs to it alone.
func delInode(t *kvtx.Tx, i *record.Inode) error {
	if err := tier.ForgetMoves(t, i); err != nil {
		return err
	}
	if i.Object != 0 {
		if err := layout.ReleaseNewest(t, i); err != nil {
			return err
		}
	}
	if i.Policy {
		t.Del(t.K.Policy(i.Id))
		t.Count[record.CPolicies]--
	}
	if i.Typ == record.TypeDirectory {
		if err := delegation.Drop(t, i); err != nil {
			return err
		}
		if err := orphanSteps(t, i); err != nil {
			return err
		}
		if err := usage.DropQuota(t, i.Id); err != nil {
			return err
		}
		if err := usage.DropHeight(t, i.Id); err != nil {
			return err
		}
	}
	if i.Xattrs {
		keys, err := t.KeysUnder(t.K.Xattrs(i.Id), MaxXattrs)
		if err != nil {
			return err
		}
		for _, key := range keys {
			t.Del(key)
		}
	}
	if err := locks.DropInode(t, i.Id); err != nil {
		return err
	}
	t.Del(t.K.Inode(i.Id))
	delete(t.Inodes, i.Id)
	t.Count[record.CInodes]--
	tree.TouchAttr(t, i, kvtx.Removed)
	return nil
}

// orphanSteps takes the directories of unfinished steps out of a run that is removed: they have no
// name in it, and outlive it until their steps are aborted.
func orphanSteps(t *kvtx.Tx, run *record.Inode) error {
	r, err := tree.RunRecord(&t.View, moraine.RunID(run.Id))
	if err != nil || r == nil {
		return err
	}
	var dirs []moraine.InodeID
	err = t.EachIn(t.K.Steps(r.Id), func(_, value []byte) (bool, error) {
		s := &record.Step{}
		err := s.Decode(value)
		if s.State == record.StepOpen || s.State == record.StepSealed {
			dirs = append(dirs, s.Dir)
		}
		return true, err
	})
	if err != nil {
		return err
	}
	for _, id := range dirs {
		dir, err := tree.Inode(t, id)
		if err != nil {
			return kvtx.Damaged(err)
		}
		Open(t, dir)
		dir.Detach()
		tree.PutInode(t, dir)
	}
	return nil
}
