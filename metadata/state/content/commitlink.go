package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// linkCommitted names an unlinked file of the session.
func linkCommitted(t *kvtx.Tx, i *record.Inode, l *wire.LinkTarget) error {
	if err := names.CheckName("link", l.GetName()); err != nil {
		return err
	}
	if i.Orphan() {
		return kvtx.Fail(moraine.NotFound, "link", l.GetName(), "the file was removed")
	}
	if i.Owner == 0 {
		return kvtx.Fail(moraine.InvalidArgument, "link", l.GetName(), "the file already has a name")
	}
	dir, err := tree.Directory(t, moraine.InodeID(l.GetParent()))
	if err != nil {
		return err
	}
	if dir.Tenant != i.Tenant {
		return kvtx.Fail(moraine.CrossTenant, "link", l.GetName(), "the directory and the file belong to different tenants")
	}
	return nameCommitted(t, dir, i, l)
}

// nameCommitted adds a file without a name to dir, and replaces the present entry if the link
// allows it. The caller writes the file.
func nameCommitted(t *kvtx.Tx, dir, i *record.Inode, l *wire.LinkTarget) error {
	e, ok, err := tree.Lookup(&t.View, dir.Id, l.GetName())
	if err != nil {
		return err
	}
	switch {
	case ok:
		err = displace(t, dir, e, l)
	case l.GetExpect() != nil:
		err = kvtx.Fail(moraine.Conflict, "link", l.GetName(), "no entry has the name, but the request expects one")
	}
	if err != nil {
		return err
	}
	names.Adopt(t, i)
	names.Link(t, dir, l.GetName(), i)
	return nil
}

// displace removes the regular file that has the name, if the link may replace it.
func displace(t *kvtx.Tx, dir *record.Inode, e record.Dentry, l *wire.LinkTarget) error {
	switch {
	case e.Typ == record.TypeDirectory:
		return kvtx.Fail(moraine.IsDirectory, "link", l.GetName(), "")
	case !l.GetReplace() || e.Typ != record.TypeFile:
		return kvtx.Fail(moraine.Exists, "link", l.GetName(), "")
	}
	old, err := tree.Inode(t, e.Inode)
	if err != nil {
		return kvtx.Damaged(err)
	}
	if err := names.Expected("link", l.GetName(), l.GetExpect(), old); err != nil {
		return err
	}
	return names.Lose(t, dir, l.GetName(), old, l.GetKeep())
}
