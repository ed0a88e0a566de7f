package transport

import (
	"slices"

	"github.com/morainefs/moraine/transport/wire"
)

// Named returns the inodes that a mutation names: those that the caller knows,
// before it is applied, that it may change. A caching client answers nothing about
// them from its cache until the request is answered. The metadata service therefore
// need not recall what they cover. Both sides use this function.
func Named(req *wire.MetaRequest) []uint64 {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Create:
		return []uint64{op.Create.GetParent()}
	case *wire.MetaRequest_Rename:
		return []uint64{op.Rename.GetParent(), op.Rename.GetNewParent()}
	case *wire.MetaRequest_Remove:
		return []uint64{op.Remove.GetParent()}
	case *wire.MetaRequest_RemoveTree:
		return []uint64{op.RemoveTree.GetParent()}
	case *wire.MetaRequest_Link:
		return []uint64{op.Link.GetInode(), op.Link.GetParent()}
	case *wire.MetaRequest_SetAttr:
		return []uint64{op.SetAttr.GetInode()}
	case *wire.MetaRequest_SetXattr:
		return []uint64{op.SetXattr.GetInode()}
	case *wire.MetaRequest_Commit:
		if op.Commit.GetNewFile() != nil {
			return []uint64{op.Commit.GetLink().GetParent()}
		}
		return []uint64{op.Commit.GetInode(), op.Commit.GetLink().GetParent()}
	case *wire.MetaRequest_Delegate:
		return []uint64{op.Delegate.GetInode()}
	case *wire.MetaRequest_EndDelegation:
		return op.EndDelegation.GetInodes()
	case *wire.MetaRequest_Batch:
		return namedInBatch(op.Batch)
	}
	return nil
}

// namedInBatch returns the inodes that the changes of a batch name or make, each once.
func namedInBatch(b *wire.Batch) []uint64 {
	var named []uint64
	for _, op := range b.GetOps() {
		named = append(named, op.GetInode(), op.GetCreate().GetParent(), op.GetRemove().GetParent(),
			op.GetRename().GetParent(), op.GetRename().GetNewParent(), op.GetSetAttr().GetInode(), op.GetCommit().GetInode())
	}
	slices.Sort(named)
	named = slices.Compact(named)
	if len(named) > 0 && named[0] == 0 {
		named = named[1:]
	}
	return named
}
