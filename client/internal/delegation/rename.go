package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// rename moves an inode in or between delegated directories: a directory only if it was born here, since
// checkpoints may be below another one. The caller holds the mutex.
func (d *Desk) rename(op *wire.Rename, c *call) (*wire.MetaResponse, error) {
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
	if err := d.lent(c, from, to); err != nil {
		return nil, err
	}
	e, ok := from.names[op.Name]
	if !ok {
		return nil, fail("rename", op.Name, moraine.NotFound)
	}
	n, err := d.nodeAt(op.Parent, op.Name, e)
	if err != nil {
		return nil, err
	}
	directory := e.typ == wire.FileType_FILE_TYPE_DIRECTORY
	if directory && !n.born || from != to && (directory || fromNode.attr.Tenant != toNode.attr.Tenant) {
		return nil, errPlain // the service knows what is above, and below
	}
	target, taken := to.names[op.NewName]
	var lost *node
	if taken {
		if target.inode == e.inode {
			return d.reply(n), nil
		}
		if lost, err = d.replaceable(op, directory, target); err != nil {
			return nil, err
		}
	}
	if !d.queue.room() {
		return nil, errWait
	}
	at, shown := d.times.next(d.Clock.Now()), n.shown(&d.table) || taken && lost.shown(&d.table)
	about := []uint64{e.inode, op.Parent, op.NewParent}
	if taken {
		about = append(about, target.inode)
		d.end(lost)
		to.remove(op.NewName)
		toNode.touch(at, -links(directory))
	}
	from.remove(op.Name)
	to.put(op.NewName, e)
	fromNode.touch(at, -links(directory))
	toNode.touch(at, links(directory))
	n.name = op.NewName
	n.change(func(a *wire.Attr) { a.Parent, a.Ctime = op.NewParent, at })
	if n.shown(&d.table) {
		d.drop(e.inode)
	}
	if shown {
		c.settle = append(c.settle, about...)
	}
	d.enqueue(&change{node: n, dirs: [2]*dir{from, to}, wire: &wire.BatchOp{At: at, Op: &wire.BatchOp_Rename{Rename: &wire.Rename{
		Parent: op.Parent, Name: op.Name, NewParent: op.NewParent, NewName: op.NewName, Keep: op.Keep}}}}, about...)
	return d.reply(n), nil
}

// links is by how much an entry adds to the link count of its directory.
func links(directory bool) int {
	if directory {
		return 1
	}
	return 0
}

// replaceable returns what a rename replaces, if it may.
func (d *Desk) replaceable(op *wire.Rename, directory bool, target entry) (*node, error) {
	over := target.typ == wire.FileType_FILE_TYPE_DIRECTORY
	switch {
	case op.NoReplace:
		return nil, fail("rename", op.NewName, moraine.Exists)
	case over && !directory:
		return nil, fail("rename", op.NewName, moraine.IsDirectory)
	case !over && directory:
		return nil, fail("rename", op.NewName, moraine.NotDirectory)
	}
	return d.removable(op.NewParent, op.NewName, target, "rename")
}
