package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// Owns fails with Stale unless each of the directories is delegated to the session. A missing one
// fails like one of another session, so that a confined session does not learn what exists.
func Owns(t *kvtx.Tx, dirs ...uint64) error {
	for _, id := range dirs {
		dir, err := tree.Inode(t, moraine.InodeID(id))
		if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && dir.Delegate != t.Session.Id {
			err = stale()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// OwnsInode fails with Stale unless the inode is such a directory, or has its name in one.
func OwnsInode(t *kvtx.Tx, id uint64) error {
	i, err := tree.Inode(t, moraine.InodeID(id))
	switch {
	case kvtx.MoraineKind(err) == moraine.NotFound || err == nil && i.Parent == 0 && i.Delegate != t.Session.Id:
		return stale()
	case err != nil || i.Delegate == t.Session.Id:
		return err
	}
	return Owns(t, uint64(i.Parent))
}

// stale is the error of a change in another directory. It names none, so that it is the same for one
// that does not exist.
func stale() error {
	return kvtx.Fail(moraine.Stale, "batch", "", "the directory is not delegated to the session")
}

// TakeNumber uses up a reserved inode number of the session.
func TakeNumber(t *kvtx.Tx, id moraine.InodeID) error {
	d, err := Of(&t.View, t.Session.Id)
	if err != nil {
		return err
	}
	if !d.Take(id) {
		return kvtx.Fail(moraine.InvalidArgument, "batch", id.String(), "the inode number is not reserved for the session, or used")
	}
	put(t, t.Session.Id, d)
	return nil
}

// AtBirth delegates a directory that the command has made. many says that the session has too many,
// so that it is not delegated.
func AtBirth(t *kvtx.Tx, id moraine.InodeID) (many bool, err error) {
	dir, err := tree.Inode(t, id)
	if err != nil {
		return false, err
	}
	if dir.Typ != record.TypeDirectory {
		return false, kvtx.Fail(moraine.InvalidArgument, "batch", id.String(), "only a directory can be delegated")
	}
	d, err := Of(&t.View, t.Session.Id)
	if err != nil {
		return false, err
	}
	if !t.Session.Leases || d.Dirs >= MaxDirs {
		return true, nil
	}
	return false, give(t, dir, d)
}
