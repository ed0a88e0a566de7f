package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// Rename moves an entry. An inode under the new name is replaced as in POSIX, makes the request
// fail with no_replace, or is swapped with exchange.
func Rename(t *kvtx.Tx, op *wire.Rename) (*wire.MetaResponse, error) {
	if op.GetNoReplace() && op.GetExchange() {
		return nil, kvtx.Fail(moraine.InvalidArgument, "rename", op.GetName(), "a rename cannot set both no_replace and exchange")
	}
	if op.GetWhiteout() && op.GetExchange() {
		return nil, kvtx.Fail(moraine.InvalidArgument, "rename", op.GetName(), "an exchange leaves no name free for a whiteout")
	}
	if err := CheckName("rename", op.GetNewName()); err != nil {
		return nil, err
	}
	t.Forced = op.GetForce()
	dir, child, err := Entry(t, "rename", op.GetParent(), op.GetName())
	if err != nil {
		return nil, err
	}
	newDir, err := tree.Directory(t, moraine.InodeID(op.GetNewParent()))
	if err != nil {
		return nil, err
	}
	if err := mayRename(t, child, dir, newDir); err != nil {
		return nil, err
	}
	e, ok, err := tree.Lookup(&t.View, newDir.Id, op.GetNewName())
	if err != nil {
		return nil, err
	}
	switch {
	case ok && e.Inode == child.Id:
		return tree.EntryReply(child), nil // two names of one file: nothing to do
	case ok && op.GetNoReplace():
		return nil, kvtx.Fail(moraine.Exists, "rename", op.GetNewName(), "")
	case !ok && op.GetExchange():
		return nil, kvtx.Fail(moraine.NotFound, "rename", op.GetNewName(), "the exchange needs an entry with this name")
	}
	if !ok {
		if err := move(t, dir, op.GetName(), newDir, op.GetNewName(), child); err != nil {
			return nil, err
		}
		return tree.EntryReply(child), whiteOut(t, op, dir)
	}
	target, err := tree.Inode(t, e.Inode)
	if err != nil {
		return nil, err
	}
	if op.GetExchange() {
		return exchange(t, op, dir, newDir, child, target)
	}
	return replace(t, op, dir, newDir, child, target)
}

// mayRename checks a move of child from dir to newDir against the rules that do not depend on the
// new name.
func mayRename(t *kvtx.Tx, child, dir, newDir *record.Inode) error {
	if err := MayRenameTree(t, child); err != nil {
		return err
	}
	if dir.Id == newDir.Id {
		return nil
	}
	if child.Tenant != newDir.Tenant {
		return kvtx.Fail(moraine.CrossTenant, "rename", child.Id.String(), "the new directory belongs to another tenant: copy it instead")
	}
	if child.Typ != record.TypeDirectory {
		return nil
	}
	at := newDir
	for depth := 0; ; depth++ {
		if at.Id == child.Id {
			return kvtx.Fail(moraine.InvalidArgument, "rename", child.Id.String(), "a directory cannot move below itself")
		}
		if at.Parent == 0 {
			return joinTree(t, newDir, child, depth)
		}
		if depth == kvtx.MaxDepth {
			return kvtx.Fail(moraine.TooLarge, "rename", newDir.Id.String(), "the new directory is more than %d directories deep: move it higher up first", kvtx.MaxDepth)
		}
		var err error
		if at, err = tree.Ancestor(&t.View, at.Parent); err != nil {
			return err
		}
	}
}

// joinTree makes a move of a tree meet the delegations that may be in it, if it goes below a quota, or
// so deep that one would be below more than kvtx.MaxDelegated others. What is delegated has no quota and room for
// further directories below it, so that no error for one is late. level is that of newDir.
func joinTree(t *kvtx.Tx, newDir, child *record.Inode, level int) error {
	height, err := usage.Height(&t.View, child.Id)
	if err != nil {
		return err
	}
	deep := level+1+int(height) > kvtx.MaxDelegated
	if limited, err := usage.Limited(&t.View, newDir.Id); err != nil || !limited && !deep {
		return err
	}
	return tree.MeetAll(&t.View)
}

// move moves child to another name, which is free.
func move(t *kvtx.Tx, dir *record.Inode, name string, newDir *record.Inode, newName string, child *record.Inode) error {
	Unlink(t, dir, name, child)
	Link(t, newDir, newName, child)
	child.Changed(t.Now)
	tree.PutInode(t, child)
	if dir.Id == newDir.Id {
		return adoptRenamed(t, child)
	}
	return flushMoved(t, child)
}

// replace moves child to a name that target has, and removes that name from target.
func replace(t *kvtx.Tx, op *wire.Rename, dir, newDir, child, target *record.Inode) (*wire.MetaResponse, error) {
	switch {
	case target.Typ == record.TypeDirectory && child.Typ != record.TypeDirectory:
		return nil, kvtx.Fail(moraine.IsDirectory, "rename", op.GetNewName(), "")
	case target.Typ != record.TypeDirectory && child.Typ == record.TypeDirectory:
		return nil, kvtx.Fail(moraine.NotDirectory, "rename", op.GetNewName(), "")
	case target.Id == dir.Id:
		return nil, kvtx.Fail(moraine.NotEmpty, "rename", op.GetNewName(), "")
	}
	if err := Lose(t, newDir, op.GetNewName(), target, op.GetKeep()); err != nil {
		return nil, err
	}
	if err := move(t, dir, op.GetName(), newDir, op.GetNewName(), child); err != nil {
		return nil, err
	}
	return tree.EntryReply(child), whiteOut(t, op, dir)
}

// whiteOut puts a whiteout at the name that a rename left, if the request wants one.
func whiteOut(t *kvtx.Tx, op *wire.Rename, dir *record.Inode) error {
	if !op.GetWhiteout() {
		return nil
	}
	n := record.Inode{Typ: record.TypeChar, Uid: squashed(t.Scope, op.GetUid()), Gid: squashed(t.Scope, op.GetGid()), Nlink: 1,
		Tenant: dir.Tenant, Parent: dir.Id, Name: op.GetName()}
	inheritGroup(&n, dir)
	child, err := MakeInode(t, n)
	if err != nil {
		return err
	}
	Link(t, dir, op.GetName(), child)
	return nil
}

// exchange swaps two entries.
func exchange(t *kvtx.Tx, op *wire.Rename, dir, newDir, child, target *record.Inode) (*wire.MetaResponse, error) {
	if err := mayRename(t, target, newDir, dir); err != nil {
		return nil, err
	}
	Unlink(t, dir, op.GetName(), child)
	Unlink(t, newDir, op.GetNewName(), target)
	Link(t, dir, op.GetName(), target)
	Link(t, newDir, op.GetNewName(), child)
	child.Ctime, target.Ctime = t.Now, t.Now
	tree.PutInode(t, child)
	tree.PutInode(t, target)
	if err := flushMoved(t, child); err != nil {
		return nil, err
	}
	return tree.EntryReply(child), flushMoved(t, target)
}
