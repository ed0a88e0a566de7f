package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const setgid = 0o2000

// maxDepth is how deep below a directory that the service delegated the desk makes directories by itself:
// the service delegates none that is so deep that these would be too deep.
const maxDepth = 200

// create makes an inode in a delegated directory. The caller holds the mutex.
func (d *Desk) create(op *wire.Create, c *call) (*wire.MetaResponse, error) {
	l, parent, err := d.live(op.Parent)
	switch {
	case err != nil:
		return nil, err
	case !plainCreate(op):
		return nil, errPlain
	}
	if e, ok := l.names[op.Name]; ok {
		return d.existing(op, e)
	}
	if err := d.lent(c, l); err != nil {
		return nil, err
	}
	if op.Type == wire.FileType_FILE_TYPE_DIRECTORY && l.depth >= maxDepth {
		return nil, errPlain // the service may refuse one that is deeper
	}
	if !d.queue.room() {
		return nil, errWait
	}
	number, ok := d.number()
	if !ok {
		return nil, errWait
	}
	n := d.newNode(op, parent, number)
	made := &change{node: n, dirs: [2]*dir{l}, wire: &wire.BatchOp{Inode: number, At: n.attr.Ctime, Delegate: n.dir != nil,
		Op: &wire.BatchOp_Create{Create: &wire.Create{Parent: op.Parent, Name: op.Name, Type: op.Type, Mode: op.Mode &^ op.Umask,
			Uid: op.Uid, Gid: op.Gid, Target: op.Target, Exclusive: true, Rdev: op.Rdev}}}}
	n.made = made
	l.put(op.Name, entry{inode: number, typ: op.Type})
	links := 0
	if n.dir != nil || op.Type == wire.FileType_FILE_TYPE_DIRECTORY {
		links = 1
	}
	parent.touch(n.attr.Ctime, links)
	d.enqueue(made, number, op.Parent)
	return entryReply(n.attr), nil
}

// plainCreate reports whether a create is one that the desk can carry out: what is wrong with others
// the service says.
func plainCreate(op *wire.Create) bool {
	symlink := op.Type == wire.FileType_FILE_TYPE_SYMLINK
	device := op.Type == wire.FileType_FILE_TYPE_CHAR_DEVICE || op.Type == wire.FileType_FILE_TYPE_BLOCK_DEVICE
	return !op.Unlinked && op.Tenant == "" && len(op.Xattrs) == 0 && len(op.Content) == 0 && isName(op.Name) &&
		op.Type >= wire.FileType_FILE_TYPE_REGULAR && op.Type <= wire.FileType_FILE_TYPE_BLOCK_DEVICE &&
		symlink == (op.Target != "") && len(op.Target) <= moraine.MaxSymlinkLen && (device || op.Rdev == 0)
}

// existing answers a create whose name is taken.
func (d *Desk) existing(op *wire.Create, e entry) (*wire.MetaResponse, error) {
	directory := wire.FileType_FILE_TYPE_DIRECTORY
	switch {
	case op.Exclusive || op.Type >= wire.FileType_FILE_TYPE_SYMLINK:
		return nil, fail("create", op.Name, moraine.Exists)
	case e.typ == directory && op.Type != directory:
		return nil, fail("create", op.Name, moraine.IsDirectory)
	case e.typ != op.Type:
		return nil, fail("create", op.Name, moraine.Exists)
	}
	a, err := d.attrOf(e.inode)
	if err != nil {
		return nil, err
	}
	return entryReply(a), nil
}

// newNode makes the node of a new inode. A directory is delegated from its birth, if there is room.
func (d *Desk) newNode(op *wire.Create, parent *node, number uint64) *node {
	at := d.times.next(d.Clock.Now())
	a := &wire.Attr{Inode: number, Type: op.Type, Mode: op.Mode & 0o7777 &^ op.Umask, Uid: d.numbers.owner(op.Uid), Gid: d.numbers.owner(op.Gid), Nlink: 1, Target: op.Target,
		Rdev: op.Rdev, Atime: at, Mtime: at, Ctime: at, Parent: parent.attr.Inode, Tenant: parent.attr.Tenant}
	switch op.Type {
	case wire.FileType_FILE_TYPE_REGULAR:
		a.Generation = uint64(moraine.ID(number).Incarnation())<<56 | 1
	case wire.FileType_FILE_TYPE_DIRECTORY:
		a.Nlink = 2
	case wire.FileType_FILE_TYPE_SYMLINK:
		a.Mode = 0o777
	}
	if parent.attr.Mode&setgid != 0 {
		a.Gid = parent.attr.Gid
		if op.Type == wire.FileType_FILE_TYPE_DIRECTORY {
			a.Mode |= setgid
		}
	}
	n := &node{attr: a, name: op.Name, born: true}
	if op.Type == wire.FileType_FILE_TYPE_DIRECTORY && len(d.dirs) < maxDirs {
		n.dir = &dir{id: number, names: map[string]entry{}, under: parent.dir.under, depth: parent.dir.depth + 1, state: dirLive, changed: d.Clock.Now()}
		d.used++
		n.dir.used = d.used
		d.dirs[number] = n.dir
		if len(d.dirs) > manyDirs {
			signal(d.tend)
		}
	}
	d.nodes[number] = n
	d.Service.Hide(number)
	return n
}
