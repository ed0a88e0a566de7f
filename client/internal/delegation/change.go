package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// remove takes a name from an inode. The caller holds the mutex.
func (d *Desk) remove(op *wire.Remove, c *call) (*wire.MetaResponse, error) {
	l, parent, err := d.live(op.Parent)
	switch {
	case err != nil:
		return nil, err
	case op.Expect != nil || !isName(op.Name):
		return nil, errPlain
	}
	if err := d.lent(c, l); err != nil {
		return nil, err
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
	n, err := d.removable(op.Parent, op.Name, e, "remove")
	if err != nil {
		return nil, err
	}
	if !d.queue.room() {
		return nil, errWait
	}
	at, links, shown := d.times.next(d.Clock.Now()), 0, n.shown(&d.table)
	if directory {
		links = -1
	}
	l.remove(op.Name)
	parent.touch(at, links)
	d.end(n)
	if !n.born {
		d.asks.removed(directory, d.Clock.Now())
	}
	if shown {
		c.settle = append(c.settle, op.Parent, e.inode)
	}
	d.enqueue(&change{node: n, dirs: [2]*dir{l}, wire: &wire.BatchOp{At: at, Op: &wire.BatchOp_Remove{Remove: &wire.Remove{
		Parent: op.Parent, Name: op.Name, Directory: op.Directory, Keep: op.Keep}}}}, e.inode, op.Parent)
	return &wire.MetaResponse{Result: &wire.MetaResponse_Remove{Remove: &wire.RemoveReply{Inode: e.inode}}}, nil
}

// removable returns what has a name, if the desk may take the name from it: an empty directory that is
// delegated too, or anything else.
func (d *table) removable(parent uint64, name string, e entry, op string) (*node, error) {
	n, err := d.nodeAt(parent, name, e)
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
	d.drop(n.attr.Inode) // what the cache has of an old one
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
