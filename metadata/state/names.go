package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxLinks is the most names of one file.
const MaxLinks = 65_000

// maxNamesSeen bounds how many names of one file a look for one of them in a
// scope goes over.
const maxNamesSeen = 1024

// hint returns what an inode that a directory has as name keeps of it. Whether
// inodes keep their names is fixed when the state is made.
func (t *tx) hint(name string) string {
	if t.count[record.CNames] == 0 {
		return ""
	}
	return name
}

// linkName gives a file or symbolic link one more name.
func (m *Machine) linkName(t *tx, op *wire.Link) (*wire.MetaResponse, error) {
	if err := checkName("link", op.GetName()); err != nil {
		return nil, err
	}
	i, err := t.named(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	if err := t.mayChange("link", i); err != nil {
		return nil, err
	}
	dir, err := t.directory(moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	_, taken, err := t.lookup(dir.Id, op.GetName())
	if err != nil {
		return nil, err
	}
	switch {
	case i.Typ == record.TypeDirectory:
		return nil, fail(moraine.PermissionDenied, "link", op.GetName(), "a directory has one name")
	case taken:
		return nil, fail(moraine.Exists, "link", op.GetName(), "")
	case i.Tenant != dir.Tenant:
		return nil, fail(moraine.CrossTenant, "link", op.GetName(), "copy it instead")
	case i.Nlink >= MaxLinks:
		return nil, fail(moraine.TooLarge, "link", op.GetName(), "the file has %d names, the most there may be", MaxLinks)
	}
	if i.Owner != 0 {
		m.adopt(t, i)
	} else if err := t.anotherName(i); err != nil {
		return nil, err
	}
	m.link(t, dir, op.GetName(), i)
	i.Ctime = t.now
	t.putInode(i)
	return entryReply(i), m.flushOnCommit(t, i)
}

// anotherName counts one more name of i. With the second one its names get
// rows of their own, from then on and for ever.
func (t *tx) anotherName(i *record.Inode) error {
	i.Nlink++
	if i.ManyLinks {
		return nil
	}
	parent, name, err := t.nameOf(i)
	if err != nil {
		return err
	}
	if name == "" {
		return &moraine.Error{Op: "link", Ref: i.Id.String(), Kind: moraine.Corrupt}
	}
	i.ManyLinks = true
	t.put(t.k.name(i.Id, parent, name), []byte{record.DentryVersion})
	return nil
}

// rehome makes parent and name of an inode that lost one of several names one
// that it has.
func (t *tx) rehome(i *record.Inode) error {
	keys, err := t.keysUnder(t.k.names(i.Id), 1)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return &moraine.Error{Op: "names", Ref: i.Id.String(), Kind: moraine.Corrupt}
	}
	parent, name := nameOfKey(keys[0])
	i.Parent, i.Name = parent, t.hint(name)
	return nil
}

// nameOfKey takes a key of tabName apart.
func nameOfKey(key []byte) (parent moraine.InodeID, name string) {
	return moraine.InodeID(binary.BigEndian.Uint64(key[11:])), string(key[19:])
}

// nameOf returns a name that an inode has, and its directory; "" where it has
// none. In a state that keeps no names it looks through the directory.
func (v *view) nameOf(i *record.Inode) (parent moraine.InodeID, name string, err error) {
	if i.Parent == 0 || i.Nlink == 0 {
		return 0, "", nil
	}
	if i.Name != "" {
		return i.Parent, i.Name, nil
	}
	if i.ManyLinks {
		keys, err := v.keysUnder(v.k.names(i.Id), 1)
		if err != nil || len(keys) == 0 {
			return 0, "", err
		}
		parent, name = nameOfKey(keys[0])
		return parent, name, nil
	}
	prefix := v.k.dentries(i.Parent)
	var bad error
	err = v.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var e record.Dentry
		if e, bad = record.DecodeDentry(value); bad != nil {
			return false
		}
		if e.Inode == i.Id {
			name = string(key[len(prefix):])
		}
		return name == ""
	})
	if err == nil {
		err = bad
	}
	return i.Parent, name, err
}

// nameBelow returns the first name of a file with several that is below top, and its
// directory; ok is false where there is none.
func (v *view) nameBelow(top moraine.InodeID, i *record.Inode) (parent moraine.InodeID, name string, ok bool, err error) {
	keys, err := v.keysUnder(v.k.names(i.Id), maxNamesSeen)
	if err != nil {
		return 0, "", false, err
	}
	var last moraine.InodeID
	for _, key := range keys {
		parent, name := nameOfKey(key)
		if parent == last {
			continue
		}
		last = parent
		if ok, err := v.below(top, parent); ok || err != nil {
			return parent, name, ok, err
		}
	}
	return 0, "", false, nil
}

// mayChange fails where another session holds a file without a name.
func (t *tx) mayChange(op string, i *record.Inode) error {
	if i.Owner != 0 && i.Owner != t.scope.session {
		return fail(moraine.PermissionDenied, op, i.Id.String(), "another session is writing it")
	}
	return nil
}

// hold has the session keep a file whose last name is gone: it lives on, until
// the session releases it or ends.
func (m *Machine) hold(t *tx, i *record.Inode) {
	i.Detach()
	i.Nlink, i.Owner = 0, t.session.Id
	i.Ctime = t.now
	t.put(t.k.sessionInode(i.Owner, i.Id), []byte{record.SessionVersion})
	t.putInode(i)
}

// MaxRelease is the most files that one request releases.
const MaxRelease = 256

// release lets files without a name die that the session holds. Those that it
// does not hold are passed over.
func (m *Machine) release(t *tx, op *wire.Release) (*wire.MetaResponse, error) {
	if len(op.GetInodes()) > MaxRelease {
		return nil, fail(moraine.TooLarge, "release", "", "%d files, %d at most", len(op.GetInodes()), MaxRelease)
	}
	for _, id := range op.GetInodes() {
		i, err := t.inode(moraine.InodeID(id))
		if moraineKind(err) == moraine.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		if i.Owner == 0 || i.Owner != t.session.Id {
			continue
		}
		if err := m.dropFile(t, i); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// TypeOf returns what an inode is, and FILE_TYPE_UNSPECIFIED where it is gone or
// has no name.
func (m *Machine) TypeOf(r Reader, id moraine.InodeID) (wire.FileType, error) {
	i, err := m.view(r).inode(id)
	switch {
	case moraineKind(err) == moraine.NotFound:
		return wire.FileType_FILE_TYPE_UNSPECIFIED, nil
	case err != nil:
		return 0, err
	case i.Nlink == 0:
		return wire.FileType_FILE_TYPE_UNSPECIFIED, nil
	}
	return wire.FileType(i.Typ), nil
}

// PathBelow returns the path of an inode from the directory top, by one of its
// names, "" for top itself; false where it is not below it.
func (m *Machine) PathBelow(r Reader, top, id moraine.InodeID) (path string, below bool, err error) {
	return m.view(r).pathBelow(top, id)
}

func (v *view) pathBelow(top, id moraine.InodeID) (path string, below bool, err error) {
	for depth := 0; id != top; depth++ {
		i, err := v.inode(id)
		if moraineKind(err) == moraine.NotFound || depth > maxDepth {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		parent, name, err := v.nameOf(i)
		if depth == 0 && i.ManyLinks && i.Nlink > 1 && top != v.k.top() {
			parent, name, _, err = v.nameBelow(top, i) // the newest may be elsewhere
		}
		if err != nil || name == "" {
			return "", false, err
		}
		if path == "" {
			path = name
		} else {
			path = name + "/" + path
		}
		id = parent
	}
	return path, true, nil
}
