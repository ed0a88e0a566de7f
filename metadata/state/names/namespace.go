package names

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// CheckName checks a new entry's name against the rules for names.
func CheckName(op, name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return kvtx.Fail(moraine.InvalidArgument, op, name, "a name must not be empty, . or ..")
	case len(name) > moraine.MaxNameLen:
		return kvtx.Fail(moraine.NameTooLong, op, name, "the name has %d bytes, %d at most", len(name), moraine.MaxNameLen)
	case strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0:
		return kvtx.Fail(moraine.InvalidArgument, op, name, "a name must not contain / or NUL")
	}
	return nil
}

// MakeInode issues a number for i, sets its times and writes it. A file starts empty at the first
// generation.
func MakeInode(t *kvtx.Tx, i record.Inode) (*record.Inode, error) {
	n := &i
	if n.Id == 0 {
		id, err := t.NextID(record.CInode)
		if err != nil {
			return nil, err
		}
		n.Id = moraine.InodeID(id)
	}
	n.Mode &= 0o7777
	n.Atime, n.Mtime, n.Ctime = t.Now, t.Now, t.Now
	if n.Typ == record.TypeFile {
		n.Generation = moraine.Generation(uint64(moraine.ID(n.Id).Incarnation())<<56 | 1)
	}
	tree.Remember(t, n)
	t.Insert(t.K.Inode(n.Id), n.Encode())
	t.Count[record.CInodes]++
	return n, nil
}

// Link adds child to dir as name, which must be free, and makes dir its parent. The caller updates
// child.Nlink and writes child.
func Link(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) {
	t.Put(t.K.Dentry(dir.Id, name), record.Dentry{Inode: child.Id, Typ: child.Typ}.Encode())
	child.Parent = dir.Id
	child.Name = name
	if child.ManyLinks {
		t.Put(t.K.Name(child.Id, dir.Id, name), []byte{record.DentryVersion})
	}
	tree.TouchEntry(t, dir, name, child, kvtx.Added)
	dir.Entries++
	if child.Typ == record.TypeDirectory {
		dir.Nlink++
	}
	changed(t, dir)
}

// Unlink removes the entry name, which is child, from dir. The caller decides what happens to child
// and writes it.
func Unlink(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) {
	unname(t, dir, name, child)
	if child.Typ == record.TypeDirectory {
		dir.Nlink--
	}
	changed(t, dir)
}

// unname removes the entry from dir's records. The caller writes dir.
func unname(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) {
	t.Del(t.K.Dentry(dir.Id, name))
	tree.TouchEntry(t, dir, name, child, kvtx.Removed)
	dir.Entries--
	if child.ManyLinks {
		t.Del(t.K.Name(child.Id, dir.Id, name))
	}
}

// changed updates the times of a directory whose entries changed, and writes it.
func changed(t *kvtx.Tx, dir *record.Inode) {
	dir.Changed(t.Now)
	dir.Mtime = dir.Ctime
	tree.PutInode(t, dir)
}

// Expected checks the inode that has a name against the condition of the request that replaces it;
// nil is no condition.
func Expected(op, name string, want *wire.Expect, have *record.Inode) error {
	switch {
	case want == nil:
		return nil
	case want.GetInode() != 0 && want.GetInode() != uint64(have.Id):
		return kvtx.Fail(moraine.Conflict, op, name, "the name belongs to inode %s, but the request expects %s", have.Id, moraine.InodeID(want.GetInode()))
	case want.GetGeneration() != 0 && want.GetGeneration() != uint64(have.Generation):
		return kvtx.Fail(moraine.Conflict, op, name, "inode %s has generation %d, but the request expects %d", have.Id, have.Generation, want.GetGeneration())
	case want.GetCtime() != 0 && want.GetCtime() != have.Ctime:
		return kvtx.Fail(moraine.Conflict, op, name, "inode %s has changed since the client read it", have.Id)
	}
	return nil
}

// Entry returns a directory and the inode under a name in it.
func Entry(t *kvtx.Tx, op string, parent uint64, name string) (dir, child *record.Inode, err error) {
	if err := CheckName(op, name); err != nil {
		return nil, nil, err
	}
	if dir, err = tree.Directory(t, moraine.InodeID(parent)); err != nil {
		return nil, nil, err
	}
	e, ok, err := tree.Lookup(&t.View, dir.Id, name)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, kvtx.Fail(moraine.NotFound, op, name, "")
	}
	child, err = tree.Inode(t, e.Inode)
	return dir, child, err
}

// DropName removes one name from child, whose entry is already gone. An inode without names is
// removed, unless sessions may have it open; a directory must be empty.
func DropName(t *kvtx.Tx, child *record.Inode, ref string) error {
	if child.Typ == record.TypeDirectory {
		if child.Entries != 0 {
			return kvtx.Fail(moraine.NotEmpty, "remove", ref, "")
		}
		return delInode(t, child)
	}
	child.Nlink--
	if child.Nlink > 0 {
		if err := rehome(t, child); err != nil {
			return err
		}
		child.Changed(t.Now)
		tree.PutInode(t, child)
		return nil
	}
	if mayBeOpen(t, child) {
		orphan(t, child)
		tree.PutInode(t, child)
		return nil
	}
	return DropFile(t, child)
}

// DropFile removes a file or link without a name, and its content: at once if it is small,
// otherwise by a job.
func DropFile(t *kvtx.Tx, i *record.Inode) error {
	if i.Owner != 0 {
		t.Del(t.K.SessionInode(i.Owner, i.Id))
	}
	if i.Linger != 0 {
		t.Del(t.K.Linger(i.Linger))
	}
	if err := delInode(t, i); err != nil {
		return err
	}
	return layout.Discard(t, i.Content)
}

// Adopt prepares an unlinked file of a session or job for a name. The caller links and writes it.
func Adopt(t *kvtx.Tx, i *record.Inode) {
	if i.Owner != 0 {
		t.Del(t.K.SessionInode(i.Owner, i.Id))
	}
	i.Owner, i.Nlink = 0, 1
}
