package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// concat makes a file of ranges of others: at once, or by a job.
func (m *Machine) concat(t *tx, op *wire.Concat) (*wire.MetaResponse, error) {
	ok, err := t.speaks(LevelConcat)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fail(moraine.Unimplemented, "concat", op.GetLink().GetName(), "the cluster's feature level does not have it: clone range by range")
	}
	i, err := t.contentFile("concat", op.GetInode())
	if err != nil {
		return nil, err
	}
	if err := m.checkConcat(t, i, op); err != nil {
		return nil, err
	}
	if len(op.GetRanges()) <= MaxCloneRanges {
		w := &cloneWork{op: &wire.Clone{Mode: wire.CommitMode_COMMIT_MODE_APPEND, Mtime: op.GetMtime()}, i: i, level: moraine.NVMe}
		fits, err := w.takeAll(t, op.GetRanges())
		if err != nil {
			return nil, err
		}
		if fits {
			return m.concatNow(t, w, op)
		}
	}
	return m.addConcat(t, i, op)
}

// takeAll finds the pieces of all ranges; false where they are too many for one
// command.
func (w *cloneWork) takeAll(t *tx, ranges []*wire.CloneRange) (bool, error) {
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

// checkConcat holds a request against what can never be, so that it fails at once
// and not when most of its work is done.
func (m *Machine) checkConcat(t *tx, i *record.Inode, op *wire.Concat) error {
	ref := i.Id.String()
	switch l := op.GetLink(); {
	case i.Owner == 0 || i.Content != 0 || i.Size != 0:
		return fail(moraine.InvalidArgument, "concat", ref, "the file has a name, or content: make an empty one without a name")
	case len(op.GetRanges()) > wire.MaxConcatRanges:
		return fail(moraine.TooLarge, "concat", ref, "%d ranges, %d at most", len(op.GetRanges()), wire.MaxConcatRanges)
	case l == nil || l.GetKeep():
		return fail(moraine.InvalidArgument, "concat", ref, "want a name, and none that keeps what had it")
	}
	for _, r := range op.GetRanges() {
		if r.GetInode() == op.GetInode() {
			return fail(moraine.InvalidArgument, "concat", ref, "it is a range of itself")
		}
	}
	dir, err := t.mayName(i, op.GetLink())
	if err != nil || op.GetConsume() == 0 {
		return err
	}
	_, err = t.consumable(moraine.InodeID(op.GetConsume()), dir)
	return err
}

// mayName returns the directory that is to name i, if it may.
func (t *tx) mayName(i *record.Inode, l *wire.LinkTarget) (*record.Inode, error) {
	if err := checkName("link", l.GetName()); err != nil {
		return nil, err
	}
	dir, err := t.directory(moraine.InodeID(l.GetParent()))
	if err != nil {
		return nil, err
	}
	if dir.Tenant != i.Tenant {
		return nil, fail(moraine.CrossTenant, "link", l.GetName(), "")
	}
	if dir.Sealed {
		return nil, t.immutable(dir)
	}
	e, ok, err := t.lookup(dir.Id, l.GetName())
	switch {
	case err != nil || !ok:
		return dir, err
	case e.Typ == record.TypeDirectory:
		return nil, fail(moraine.IsDirectory, "link", l.GetName(), "")
	case !l.GetReplace() || e.Typ != record.TypeFile:
		return nil, fail(moraine.Exists, "link", l.GetName(), "")
	}
	return dir, nil
}

// consumable returns a directory that is to go when a file appears in dir, which
// is not below it.
func (t *tx) consumable(id moraine.InodeID, dir *record.Inode) (*record.Inode, error) {
	gone, err := t.directory(id)
	if err != nil {
		return nil, err
	}
	in, err := t.below(gone.Id, dir.Id)
	if err != nil {
		return nil, err
	}
	if in || gone.Parent == 0 {
		return nil, fail(moraine.InvalidArgument, "concat", gone.Id.String(), "the file itself would go with it")
	}
	return gone, t.mayRenameTree(gone)
}

// concatNow does all of a concatenation in this command.
func (m *Machine) concatNow(t *tx, w *cloneWork, op *wire.Concat) (*wire.MetaResponse, error) {
	if err := m.layClone(t, w); err != nil {
		return nil, err
	}
	if err := m.nameConcat(t, w.i, op.GetLink(), op.GetConsume()); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Commit{Commit: &wire.CommitReply{
		Attr: w.i.Attr(), Degraded: uint32(min(w.degraded, 1<<32-1)),
	}}}, nil
}

// nameConcat gives a file that is whole its name, and lets what it was made of go,
// in the same entry.
func (m *Machine) nameConcat(t *tx, i *record.Inode, l *wire.LinkTarget, consume uint64) error {
	dir, err := t.mayName(i, l)
	if err != nil {
		return err
	}
	var gone *record.Inode
	if consume != 0 {
		if gone, err = t.consumable(moraine.InodeID(consume), dir); err != nil {
			return err
		}
	}
	if err := m.nameCommitted(t, dir, i, l); err != nil {
		return err
	}
	t.putInode(i)
	if err := m.flushOnCommit(t, i); err != nil || gone == nil {
		return err
	}
	parent, name, err := t.nameOf(gone)
	if err != nil {
		return err
	}
	from, err := t.inode(parent)
	if err != nil {
		return damaged(err)
	}
	m.unlink(t, from, name, gone)
	return m.dropTree(t, gone, name)
}
