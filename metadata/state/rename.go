package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// rename moves an entry. What has the new name already is replaced as POSIX
// says, refused with no_replace, or swapped with exchange.
func (m *Machine) rename(t *tx, op *wire.Rename) (*wire.MetaResponse, error) {
	if op.GetNoReplace() && op.GetExchange() {
		return nil, fail(moraine.InvalidArgument, "rename", op.GetName(), "no_replace and exchange exclude each other")
	}
	if err := checkName("rename", op.GetNewName()); err != nil {
		return nil, err
	}
	t.forced = op.GetForce()
	dir, child, err := m.entry(t, "rename", op.GetParent(), op.GetName())
	if err != nil {
		return nil, err
	}
	newDir, err := t.directory(moraine.InodeID(op.GetNewParent()))
	if err != nil {
		return nil, err
	}
	if err := m.mayRename(t, child, dir, newDir); err != nil {
		return nil, err
	}
	e, ok, err := t.lookup(newDir.Id, op.GetNewName())
	if err != nil {
		return nil, err
	}
	switch {
	case ok && e.Inode == child.Id:
		return entryReply(child), nil // two names of one file: nothing to do
	case ok && op.GetNoReplace():
		return nil, fail(moraine.Exists, "rename", op.GetNewName(), "")
	case !ok && op.GetExchange():
		return nil, fail(moraine.NotFound, "rename", op.GetNewName(), "nothing to exchange with")
	}
	if !ok {
		if err := m.move(t, dir, op.GetName(), newDir, op.GetNewName(), child); err != nil {
			return nil, err
		}
		return entryReply(child), nil
	}
	target, err := t.inode(e.Inode)
	if err != nil {
		return nil, err
	}
	if op.GetExchange() {
		return m.exchange(t, op, dir, newDir, child, target)
	}
	return m.replace(t, op, dir, newDir, child, target)
}

// mayRename holds a move of child from dir to newDir against the rules that do
// not depend on the new name.
func (m *Machine) mayRename(t *tx, child, dir, newDir *record.Inode) error {
	if err := t.mayRenameTree(child); err != nil {
		return err
	}
	if dir.Id == newDir.Id {
		return nil
	}
	if child.Tenant != newDir.Tenant {
		return fail(moraine.CrossTenant, "rename", child.Id.String(), "copy it instead")
	}
	if child.Typ != record.TypeDirectory {
		return nil
	}
	at := newDir
	for depth := 0; ; depth++ {
		if at.Id == child.Id {
			return fail(moraine.InvalidArgument, "rename", child.Id.String(), "into a directory below itself")
		}
		if at.Parent == 0 {
			return nil
		}
		if depth == maxDepth {
			return fail(moraine.TooLarge, "rename", newDir.Id.String(), "more than %d directories deep", maxDepth)
		}
		var err error
		if at, err = t.inode(at.Parent); err != nil {
			return err
		}
	}
}

// move takes child from one name to another that is free.
func (m *Machine) move(t *tx, dir *record.Inode, name string, newDir *record.Inode, newName string, child *record.Inode) error {
	m.unlink(t, dir, name, child)
	m.link(t, newDir, newName, child)
	child.Ctime = t.now
	t.putInode(child)
	if dir.Id == newDir.Id {
		return nil
	}
	return m.flushMoved(t, child)
}

// replace is a move onto a name whose present holder loses it.
func (m *Machine) replace(t *tx, op *wire.Rename, dir, newDir, child, target *record.Inode) (*wire.MetaResponse, error) {
	switch {
	case target.Typ == record.TypeDirectory && child.Typ != record.TypeDirectory:
		return nil, fail(moraine.IsDirectory, "rename", op.GetNewName(), "")
	case target.Typ != record.TypeDirectory && child.Typ == record.TypeDirectory:
		return nil, fail(moraine.NotDirectory, "rename", op.GetNewName(), "")
	case target.Id == dir.Id:
		return nil, fail(moraine.NotEmpty, "rename", op.GetNewName(), "")
	}
	m.unlink(t, newDir, op.GetNewName(), target)
	if op.GetKeep() && target.Typ != record.TypeDirectory && target.Nlink == 1 {
		m.hold(t, target)
	} else if err := m.dropName(t, target, op.GetNewName()); err != nil {
		return nil, err
	}
	if err := m.move(t, dir, op.GetName(), newDir, op.GetNewName(), child); err != nil {
		return nil, err
	}
	return entryReply(child), nil
}

// exchange swaps two entries.
func (m *Machine) exchange(t *tx, op *wire.Rename, dir, newDir, child, target *record.Inode) (*wire.MetaResponse, error) {
	if err := m.mayRename(t, target, newDir, dir); err != nil {
		return nil, err
	}
	m.unlink(t, dir, op.GetName(), child)
	m.unlink(t, newDir, op.GetNewName(), target)
	m.link(t, dir, op.GetName(), target)
	m.link(t, newDir, op.GetNewName(), child)
	child.Ctime, target.Ctime = t.now, t.now
	t.putInode(child)
	t.putInode(target)
	if err := m.flushMoved(t, child); err != nil {
		return nil, err
	}
	return entryReply(child), m.flushMoved(t, target)
}
