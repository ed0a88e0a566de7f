package transport

import "github.com/morainefs/moraine/transport/wire"

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
		return []uint64{op.Commit.GetInode(), op.Commit.GetLink().GetParent()}
	}
	return nil
}
