package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// remove takes a name from an inode born here. The caller holds the mutex.
func (d *Desk) remove(op *wire.Remove) (*wire.MetaResponse, error) {
	l, parent, err := d.live(op.Parent)
	switch {
	case err != nil:
		return nil, err
	case op.Expect != nil || !isName(op.Name):
		return nil, errPlain
	}
	e, ok := l.names[op.Name]
	directory := e.typ == wire.FileType_FILE_TYPE_DIRECTORY
	switch {
	case !ok:
		return nil, fail("remove", op.Name, moraine.NotFound)
	case op.Directory && !directory:
		return nil, fail("remove", op.Name, moraine.NotDirectory)
	case !op.Directory && directory:
		return nil, fail("remove", op.Name, moraine.IsDirectory)
	}
	n, err := d.removable(e, "remove", op.Name)
	if err != nil {
		return nil, err
	}
	if !d.queue.room() {
		return nil, errWait
	}
	at, links := d.times.next(d.Clock.Now()), 0
	if directory {
		links = -1
	}
	l.remove(op.Name)
	parent.touch(at, links)
	d.end(n)
	d.enqueue(&change{node: n, dirs: [2]*dir{l}, wire: &wire.BatchOp{At: at, Op: &wire.BatchOp_Remove{Remove: &wire.Remove{
		Parent: op.Parent, Name: op.Name, Directory: op.Directory, Keep: op.Keep}}}}, e.inode, op.Parent)
	return &wire.MetaResponse{Result: &wire.MetaResponse_Remove{Remove: &wire.RemoveReply{Inode: e.inode}}}, nil
}

// removable returns what has a name, if the desk may take the name from it: an empty directory, or
// anything else that was born here.
func (d *Desk) removable(e entry, op, name string) (*node, error) {
	n, err := d.bornAt(e)
	if err != nil || e.typ != wire.FileType_FILE_TYPE_DIRECTORY {
		return n, err
	}
	if _, _, err := d.live(e.inode); err != nil {
		return nil, err
	}
	if len(n.dir.names) > 0 {
		return nil, fail(op, name, moraine.NotEmpty)
	}
	return n, nil
}

// end drops a node that lost its name.
func (d *table) end(n *node) {
	delete(d.nodes, n.attr.Inode)
	if n.dir != nil {
		delete(d.dirs, n.attr.Inode)
	}
	d.Service.Hide(n.attr.Inode) // what the cache has of an old one
	d.Service.Show(n.attr.Inode)
}

// rename moves an inode born here, in or between delegated directories. The caller holds the mutex.
func (d *Desk) rename(op *wire.Rename) (*wire.MetaResponse, error) {
	from, fromNode, err := d.live(op.Parent)
	if err != nil {
		return nil, err
	}
	to, toNode, err := d.live(op.NewParent)
	switch {
	case err != nil:
		return nil, err
	case op.Exchange || op.Whiteout || op.Force || !isName(op.Name) || !isName(op.NewName):
		return nil, errPlain
	}
	e, ok := from.names[op.Name]
	if !ok {
		return nil, fail("rename", op.Name, moraine.NotFound)
	}
	n, err := d.bornAt(e)
	if err != nil {
		return nil, err
	}
	directory := e.typ == wire.FileType_FILE_TYPE_DIRECTORY
	if from != to && (directory || n.attr.Tenant != toNode.attr.Tenant) {
		return nil, errPlain // the service knows what is above
	}
	target, taken := to.names[op.NewName]
	if taken {
		if target.inode == e.inode {
			return entryReply(n.attr), nil
		}
		if err := d.replaceable(op, directory, target); err != nil {
			return nil, err
		}
	}
	if !d.queue.room() {
		return nil, errWait
	}
	at := d.times.next(d.Clock.Now())
	about := []uint64{e.inode, op.Parent, op.NewParent}
	if taken {
		about = append(about, target.inode)
		d.end(d.nodes[target.inode])
		to.remove(op.NewName)
		toNode.touch(at, -links(directory))
	}
	from.remove(op.Name)
	to.put(op.NewName, e)
	fromNode.touch(at, -links(directory))
	toNode.touch(at, links(directory))
	n.name = op.NewName
	n.change(func(a *wire.Attr) { a.Parent, a.Ctime = op.NewParent, at })
	reply := entryReply(n.attr)
	if n.old {
		d.Service.Hide(e.inode)
		d.Service.Show(e.inode)
		reply = entryReply(nil)
	}
	d.enqueue(&change{node: n, dirs: [2]*dir{from, to}, wire: &wire.BatchOp{At: at, Op: &wire.BatchOp_Rename{Rename: &wire.Rename{
		Parent: op.Parent, Name: op.Name, NewParent: op.NewParent, NewName: op.NewName, Keep: op.Keep}}}}, about...)
	return reply, nil
}

// links is by how much an entry adds to the link count of its directory.
func links(directory bool) int {
	if directory {
		return 1
	}
	return 0
}

// replaceable checks what a rename replaces.
func (d *Desk) replaceable(op *wire.Rename, directory bool, target entry) error {
	over := target.typ == wire.FileType_FILE_TYPE_DIRECTORY
	switch {
	case op.NoReplace:
		return fail("rename", op.NewName, moraine.Exists)
	case over && !directory:
		return fail("rename", op.NewName, moraine.IsDirectory)
	case !over && directory:
		return fail("rename", op.NewName, moraine.NotDirectory)
	}
	_, err := d.removable(target, "rename", op.NewName)
	return err
}

// attrsHere are the attributes that the desk changes by itself: a size changes the content.
const attrsHere = uint32(wire.SetAttrField_SET_ATTR_MODE | wire.SetAttrField_SET_ATTR_UID | wire.SetAttrField_SET_ATTR_GID |
	wire.SetAttrField_SET_ATTR_ATIME | wire.SetAttrField_SET_ATTR_MTIME)

// setAttr changes attributes of an inode born here. The caller holds the mutex.
func (d *Desk) setAttr(op *wire.SetAttr) (*wire.MetaResponse, error) {
	n := d.nodes[op.Inode]
	if n == nil || !n.born || d.isOld(n) || op.Valid&^attrsHere != 0 {
		return nil, errPlain
	}
	if _, _, err := d.live(n.attr.Parent); err != nil {
		return nil, err
	}
	if n.dir != nil {
		if _, _, err := d.live(op.Inode); err != nil {
			return nil, err
		}
	}
	switch {
	case d.holds[op.Inode] > 0 || !d.queue.room():
		return nil, errWait
	}
	at := d.times.next(d.Clock.Now())
	n.change(func(a *wire.Attr) {
		setFields(op, op.Valid, &a.Mode, &a.Uid, &a.Gid, &a.Atime, &a.Mtime)
		a.Mode, a.Uid, a.Gid = a.Mode&0o7777, d.numbers.owner(a.Uid), d.numbers.owner(a.Gid)
		a.Ctime = at
	})
	if last := n.last; last != nil && !last.sent && last.wire.GetSetAttr() != nil && !n.namesSince(last) {
		set := last.wire.GetSetAttr()
		setFields(op, op.Valid, &set.Mode, &set.Uid, &set.Gid, &set.Atime, &set.Mtime)
		set.Valid |= op.Valid
		last.wire.At = at
		return entryReply(n.attr), nil
	}
	set := &wire.SetAttr{Inode: op.Inode, Valid: op.Valid}
	setFields(op, op.Valid, &set.Mode, &set.Uid, &set.Gid, &set.Atime, &set.Mtime)
	d.enqueue(&change{node: n, wire: &wire.BatchOp{At: at, Op: &wire.BatchOp_SetAttr{SetAttr: set}}}, op.Inode)
	return entryReply(n.attr), nil
}

// setFields copies the valid fields of a change.
func setFields(from *wire.SetAttr, valid uint32, mode, uid, gid *uint32, atime, mtime *int64) {
	has := func(f wire.SetAttrField) bool { return valid&uint32(f) != 0 }
	if has(wire.SetAttrField_SET_ATTR_MODE) {
		*mode = from.Mode
	}
	if has(wire.SetAttrField_SET_ATTR_UID) {
		*uid = from.Uid
	}
	if has(wire.SetAttrField_SET_ATTR_GID) {
		*gid = from.Gid
	}
	if has(wire.SetAttrField_SET_ATTR_ATIME) {
		*atime = from.Atime
	}
	if has(wire.SetAttrField_SET_ATTR_MTIME) {
		*mtime = from.Mtime
	}
}
