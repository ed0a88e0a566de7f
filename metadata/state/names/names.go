package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// LinkName gives a file or symbolic link one more name.
func LinkName(t *kvtx.Tx, op *wire.Link) (*wire.MetaResponse, error) {
	if err := CheckName("link", op.GetName()); err != nil {
		return nil, err
	}
	i, err := tree.Named(t, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	if err := MayChange(t, "link", i); err != nil {
		return nil, err
	}
	if i.Orphan() {
		return nil, kvtx.Fail(moraine.NotFound, "link", op.GetName(), "the file was removed")
	}
	dir, err := tree.Directory(t, moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	_, taken, err := tree.Lookup(&t.View, dir.Id, op.GetName())
	if err != nil {
		return nil, err
	}
	switch {
	case i.Typ == record.TypeDirectory:
		return nil, kvtx.Fail(moraine.PermissionDenied, "link", op.GetName(), "a directory cannot have a second name")
	case taken:
		return nil, kvtx.Fail(moraine.Exists, "link", op.GetName(), "")
	case i.Tenant != dir.Tenant:
		return nil, kvtx.Fail(moraine.CrossTenant, "link", op.GetName(), "the file belongs to another tenant: copy it instead")
	case i.Nlink >= tree.MaxLinks:
		return nil, kvtx.Fail(moraine.TooLarge, "link", op.GetName(), "the file has %d names, which is the limit", tree.MaxLinks)
	}
	if i.Owner != 0 {
		Adopt(t, i)
	} else if err := anotherName(t, i); err != nil {
		return nil, err
	}
	Link(t, dir, op.GetName(), i)
	i.Ctime = t.Now
	tree.PutInode(t, i)
	return tree.EntryReply(i), FlushOnCommit(t, i)
}

// anotherName counts one more name of i. From the second name on, its names have rows of their own
// for ever.
func anotherName(t *kvtx.Tx, i *record.Inode) error {
	i.Nlink++
	if i.ManyLinks {
		return nil
	}
	if i.Name == "" {
		return kvtx.Corrupt("link", i.Id.String(), "the inode has a link count and no name")
	}
	i.ManyLinks = true
	t.Put(t.K.Name(i.Id, i.Parent, i.Name), []byte{record.DentryVersion})
	return nil
}

// rehome sets the parent and name of an inode that lost one of several names to another of its
// names.
func rehome(t *kvtx.Tx, i *record.Inode) error {
	keys, err := t.KeysUnder(t.K.Names(i.Id), 1)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return kvtx.Corrupt("link", i.Id.String(), "the inode has several names and no name row")
	}
	i.Parent, i.Name = tree.NameOfKey(keys[0])
	return nil
}

// TypeOf returns the file type; FILE_TYPE_UNSPECIFIED if the inode is gone or has no name.
func TypeOf(r *kvtx.View, id moraine.InodeID) (wire.FileType, error) {
	i, err := tree.ReadInode(r, id)
	switch {
	case kvtx.MoraineKind(err) == moraine.NotFound:
		return wire.FileType_FILE_TYPE_UNSPECIFIED, nil
	case err != nil:
		return 0, err
	case i.Nlink == 0:
		return wire.FileType_FILE_TYPE_UNSPECIFIED, nil
	}
	return wire.FileType(i.Typ), nil
}
