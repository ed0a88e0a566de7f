package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// CachedReply answers an inode's attributes for clients that may cache them.
func CachedReply(i *record.Inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: i.CachedAttr()}}}
}

// EntryReply answers an inode's attributes.
func EntryReply(i *record.Inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: i.Attr()}}}
}

// ReadInode returns the inode id; NotFound if there is none. This is where requests meet
// directories that are delegated to other sessions.
func ReadInode(v *kvtx.View, id moraine.InodeID) (*record.Inode, error) {
	i, err := Ancestor(v, id)
	if err == nil && i.Delegate != 0 {
		v.Meet(id, i.Delegate)
	}
	return i, err
}

// Ancestor is ReadInode for walks towards the root. They read the parents, names and policies of
// directories, which the session of a delegation does not change there.
func Ancestor(v *kvtx.View, id moraine.InodeID) (*record.Inode, error) {
	b, ok, err := v.R.Get(v.K.Inode(id))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, kvtx.NoInode(id)
	}
	i := &record.Inode{Id: id}
	if err := i.Decode(b); err != nil {
		return nil, err
	}
	i.Leased, i.Home = i.Lease(), i.Parent
	return i, nil
}

// Inode is ReadInode for changes. Within one command every call with the same id returns the same
// record, so that handlers do not overwrite each other's changes.
func Inode(t *kvtx.Tx, id moraine.InodeID) (*record.Inode, error) {
	if i := t.Inodes[id]; i != nil {
		return i, nil
	}
	t.Read = append(t.Read, id)
	i, err := ReadInode(&t.View, id)
	if err != nil {
		return nil, err
	}
	Remember(t, i)
	return i, nil
}

// Remember makes later calls of Inode in this command return i.
func Remember(t *kvtx.Tx, i *record.Inode) {
	if t.Inodes == nil {
		t.Inodes = make(map[moraine.InodeID]*record.Inode, 4)
	}
	t.Inodes[i.Id] = i
}

// PutInode writes a changed inode and records the Touch.
func PutInode(t *kvtx.Tx, i *record.Inode) {
	t.Put(t.K.Inode(i.Id), i.Encode())
	Touch(t, i)
}

// Lookup finds an entry of a directory.
func Lookup(v *kvtx.View, dir moraine.InodeID, name string) (record.Dentry, bool, error) {
	b, ok, err := v.R.Get(v.K.Dentry(dir, name))
	if err != nil || !ok {
		return record.Dentry{}, false, err
	}
	e, err := record.DecodeDentry(b)
	return e, err == nil, err
}

// Directory returns the directory id in the scope, for changes.
func Directory(t *kvtx.Tx, id moraine.InodeID) (*record.Inode, error) {
	dir, err := Named(t, id)
	if err != nil {
		return nil, err
	}
	if dir.Typ != record.TypeDirectory {
		return nil, kvtx.Fail(moraine.NotDirectory, "directory", id.String(), "")
	}
	if dir.Nlink == 0 {
		return nil, kvtx.Fail(moraine.NotFound, "directory", id.String(), "the directory was removed")
	}
	return dir, nil
}

// Immutable is the error for a change of a sealed inode. It names the checkpoint or the snapshot.
func Immutable(t *kvtx.Tx, i *record.Inode) error {
	what, dir := "", i
	if i.Typ != record.TypeDirectory && i.Parent != 0 {
		was, err := t.B.Load(t.K.Inode(i.Parent))
		if err != nil {
			return err
		}
		if was.Exists {
			dir = &record.Inode{Id: i.Parent}
			if err := dir.Decode(was.Value); err != nil {
				return err
			}
		}
	}
	switch {
	case dir.Snapshot():
		return kvtx.Fail(moraine.Immutable, "change", i.Id.String(), "the inode belongs to a snapshot, which cannot be changed: remove the whole snapshot (moraine snapshot rm), or change a copy (moraine cp -r)")
	case i.Typ == record.TypeSymlink:
		return kvtx.Fail(moraine.Immutable, "change", i.Id.String(), "the link belongs to its training run, which moves it to the newest step")
	case dir.CommittedStep():
		what = "committed step " + dir.Step.String()
	case dir.Sealed:
		what = "a step that a launch saves"
	default:
		return kvtx.Fail(moraine.Immutable, "change", i.Id.String(), "the inode belonged to a checkpoint: it can only be removed")
	}
	return kvtx.Fail(moraine.Immutable, "change", i.Id.String(), "the inode belongs to %s, which cannot be changed: remove the whole step (moraine ckpt rm), or change a clone", what)
}
