package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// Concat builds a file from ranges of others: at once or by a job.
func Concat(t *kvtx.Tx, op *wire.Concat) (*wire.MetaResponse, error) {
	i, err := contentFile(t, "concat", op.GetInode())
	if err != nil {
		return nil, err
	}
	if err := checkConcat(t, i, op); err != nil {
		return nil, err
	}
	if len(op.GetRanges()) <= maxCloneRanges {
		w := &cloneWork{op: &wire.Clone{Mode: wire.CommitMode_COMMIT_MODE_APPEND, Mtime: op.GetMtime()}, i: i, level: moraine.NVMe}
		fits, err := w.takeAll(t, op.GetRanges())
		if err != nil {
			return nil, err
		}
		if fits {
			return concatNow(t, w, op)
		}
	}
	return addConcat(t, i, op)
}

// takeAll finds the pieces of all ranges; false if they are too many for one command.
func (w *cloneWork) takeAll(t *kvtx.Tx, ranges []*wire.CloneRange) (bool, error) {
	for _, r := range ranges {
		err := w.take(t, r)
		if w.touched > maxCloneTouched {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// checkConcat refuses an impossible request at once, rather than after most of its work.
func checkConcat(t *kvtx.Tx, i *record.Inode, op *wire.Concat) error {
	ref := i.Id.String()
	switch l := op.GetLink(); {
	case i.Owner == 0 || i.Content != 0 || i.Size != 0:
		return kvtx.Fail(moraine.InvalidArgument, "concat", ref, "the file has a name or content: create an empty file without a name")
	case len(op.GetRanges()) > wire.MaxConcatRanges:
		return kvtx.Fail(moraine.TooLarge, "concat", ref, "the request has %d ranges, %d at most", len(op.GetRanges()), wire.MaxConcatRanges)
	case l == nil || l.GetKeep():
		return kvtx.Fail(moraine.InvalidArgument, "concat", ref, "the request needs a name, and cannot keep the replaced file")
	}
	for _, r := range op.GetRanges() {
		if r.GetInode() == op.GetInode() {
			return kvtx.Fail(moraine.InvalidArgument, "concat", ref, "a range names the file itself")
		}
	}
	dir, err := mayNameTarget(t, i, op.GetLink())
	if err != nil || op.GetConsume() == 0 {
		return err
	}
	_, err = consumable(t, moraine.InodeID(op.GetConsume()), dir)
	return err
}

// mayNameTarget returns the directory that will name i, if it may.
func mayNameTarget(t *kvtx.Tx, i *record.Inode, l *wire.LinkTarget) (*record.Inode, error) {
	if err := names.CheckName("link", l.GetName()); err != nil {
		return nil, err
	}
	dir, err := tree.Directory(t, moraine.InodeID(l.GetParent()))
	if err != nil {
		return nil, err
	}
	if dir.Tenant != i.Tenant {
		return nil, kvtx.Fail(moraine.CrossTenant, "link", l.GetName(), "the directory and the file belong to different tenants")
	}
	if dir.Sealed {
		return nil, tree.Immutable(t, dir)
	}
	e, ok, err := tree.Lookup(&t.View, dir.Id, l.GetName())
	switch {
	case err != nil || !ok:
		return dir, err
	case e.Typ == record.TypeDirectory:
		return nil, kvtx.Fail(moraine.IsDirectory, "link", l.GetName(), "")
	case !l.GetReplace() || e.Typ != record.TypeFile:
		return nil, kvtx.Fail(moraine.Exists, "link", l.GetName(), "")
	}
	return dir, nil
}

// consumable returns a directory that may be removed when a file appears in dir; dir must not be
// below it.
func consumable(t *kvtx.Tx, id moraine.InodeID, dir *record.Inode) (*record.Inode, error) {
	gone, err := tree.Directory(t, id)
	if err != nil {
		return nil, err
	}
	in, err := tree.Below(&t.View, gone.Id, dir.Id)
	if err != nil {
		return nil, err
	}
	if in || gone.Parent == 0 {
		return nil, kvtx.Fail(moraine.InvalidArgument, "concat", gone.Id.String(), "the new file would be inside this directory, which the request removes")
	}
	return gone, names.MayRenameTree(t, gone)
}

// concatNow does a whole concatenation in this command.
func concatNow(t *kvtx.Tx, w *cloneWork, op *wire.Concat) (*wire.MetaResponse, error) {
	if err := layClone(t, w); err != nil {
		return nil, err
	}
	if err := nameConcat(t, w.i, op.GetLink(), op.GetConsume()); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Commit{Commit: &wire.CommitReply{
		Attr: w.i.Attr(), Degraded: uint32(min(w.degraded, 1<<32-1)),
	}}}, nil
}

// nameConcat names the finished file and removes its sources in the same entry.
func nameConcat(t *kvtx.Tx, i *record.Inode, l *wire.LinkTarget, consume uint64) error {
	dir, err := mayNameTarget(t, i, l)
	if err != nil {
		return err
	}
	var gone *record.Inode
	if consume != 0 {
		if gone, err = consumable(t, moraine.InodeID(consume), dir); err != nil {
			return err
		}
	}
	if err := nameCommitted(t, dir, i, l); err != nil {
		return err
	}
	tree.PutInode(t, i)
	if err := names.FlushOnCommit(t, i); err != nil || gone == nil {
		return err
	}
	name := gone.Name
	from, err := tree.Inode(t, gone.Parent)
	if err != nil {
		return kvtx.Damaged(err)
	}
	names.Unlink(t, from, name, gone)
	return names.DropTree(t, gone, name)
}
