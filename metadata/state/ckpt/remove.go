package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// Remove removes one entry: a file or link, or an empty directory.
func Remove(t *kvtx.Tx, op *wire.Remove) (*wire.MetaResponse, error) {
	t.IgnoresQuota = true
	dir, child, err := names.Entry(t, "remove", op.GetParent(), op.GetName())
	if err != nil {
		return nil, err
	}
	switch {
	case op.GetDirectory() && child.Typ != record.TypeDirectory:
		return nil, kvtx.Fail(moraine.NotDirectory, "remove", op.GetName(), "")
	case !op.GetDirectory() && child.Typ == record.TypeDirectory:
		return nil, kvtx.Fail(moraine.IsDirectory, "remove", op.GetName(), "")
	case child.Typ == record.TypeDirectory && child.Sealed:
		return nil, tree.Immutable(t, child)
	}
	if err := removeFromStep(t, dir, child); err != nil {
		return nil, err
	}
	if err := names.Expected("remove", op.GetName(), op.GetExpect(), child); err != nil {
		return nil, err
	}
	return removeReply(child), names.Lose(t, dir, op.GetName(), child, op.GetKeep())
}

func removeReply(i *record.Inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Remove{Remove: &wire.RemoveReply{Inode: uint64(i.Id)}}}
}

// RemoveTree unlinks a directory at once; a job removes what is below it.
func RemoveTree(t *kvtx.Tx, op *wire.RemoveTree) (*wire.MetaResponse, error) {
	t.IgnoresQuota = true
	dir, child, err := names.Entry(t, "remove tree", op.GetParent(), op.GetName())
	if err != nil {
		return nil, err
	}
	if child.Typ != record.TypeDirectory {
		return nil, kvtx.Fail(moraine.NotDirectory, "remove tree", op.GetName(), "")
	}
	switch {
	case child.Snapshot() && !dir.Sealed:
		names.Unseal(t, child) // the whole snapshot goes
	case child.Sealed:
		return removeStepTree(t, child, op.GetForce())
	}
	if err := mayRemoveSteps(t, dir, child, op.GetForce()); err != nil {
		return nil, err
	}
	if kept, err := names.ToTrash(t, dir, op.GetName(), child); kept || err != nil {
		return removeReply(child), err
	}
	owner := moraine.SessionID(0)
	if child.Entries > 0 {
		if owner, err = jobs.JobOwner(t, "remove tree"); err != nil {
			return nil, err
		}
	}
	names.Unlink(t, dir, op.GetName(), child)
	return removeReply(child), names.DropTreeOf(t, child, op.GetName(), owner)
}
