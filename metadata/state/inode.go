package state

import (
	"encoding/binary"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// File types of an inode; the numbers are those of wire.FileType.
const (
	typeFile      = uint8(wire.FileType_FILE_TYPE_REGULAR)
	typeDirectory = uint8(wire.FileType_FILE_TYPE_DIRECTORY)
	typeSymlink   = uint8(wire.FileType_FILE_TYPE_SYMLINK)
)

// inode is a file, a directory or a symbolic link.
type inode struct {
	id       moraine.InodeID // in the key
	typ      uint8
	mode     uint32 // 07777
	uid, gid uint32
	nlink    uint32
	tenant   moraine.Tenant
	// parent is the directory that names it; 0 for the root, and for what has
	// no name, but for a checkpoint's directory: its parent is the run's from the
	// start.
	parent moraine.InodeID
	// manyLinks is set for ever once it has had two names: then parent means
	// nothing to caches.
	manyLinks bool
	// owner is the session that holds a file without a name.
	owner               moraine.SessionID
	atime, mtime, ctime int64 // wall clock, nanoseconds
	target              string
	// name is what parent names it as: kept where the state keeps names (see
	// Init), so that a path is found by walking up; empty where it has none.
	name string
	// xattrs is set while it has extended attributes.
	xattrs bool

	// sealed is set of a checkpoint's directory and files, and of the links to it in its
	// run: nothing but the handlers of checkpoints changes them (seal.go).
	sealed bool

	// Of a directory: how many entries, and how many of them are directories.
	entries uint64
	// step is the committed checkpoint that a sealed directory holds.
	step stepID
	// policy is set while the directory has one of its own.
	policy bool

	// Of a file.
	size       int64
	stored     int64 // bytes in extents
	evicted    int64 // how many of them are in objects only
	generation moraine.Generation
	level      moraine.Level
	degraded   uint64
	// content names its list of table references; 0 where it has no extent.
	content uint64
	// refs counts the references. None ends past lastEnd, and the last one ends
	// there unless it was cut off.
	refs    uint64
	lastEnd int64
	// object is the newest object made of the file, 0 where there is none, and
	// objectGen the generation that it holds.
	object    moraine.ObjectID
	objectGen moraine.Generation

	// leased and home are lease() and parent as they were read; not in the record.
	leased, home moraine.InodeID
}

const inodeVersion = 1

// Bits that say which parts of an inode record follow.
const (
	inodeManyLinks = 1 << iota
	inodeOwned
	inodeContent
	inodeNamed
	inodeXattrs
	inodeObject
	inodeEvicted
	inodePolicy
	inodeSealed
	inodeStep
	inodeFlagsEnd // the first bit that means nothing
)

func (i *inode) encode() []byte {
	b := make([]byte, 0, 120+len(i.target)+len(i.name))
	flags := i.flags()
	b = putUvarint(append(b, inodeVersion, i.typ), uint64(flags))
	b = putUvarint(b, uint64(i.mode))
	b = putUvarint(b, uint64(i.uid))
	b = putUvarint(b, uint64(i.gid))
	b = putUvarint(b, uint64(i.nlink))
	b = putUvarint(b, uint64(i.tenant))
	b = putFixed64(b, uint64(i.parent))
	b = putFixed64(b, uint64(i.atime))
	b = putFixed64(b, uint64(i.mtime))
	b = putFixed64(b, uint64(i.ctime))
	if i.owner != 0 {
		b = putFixed64(b, uint64(i.owner))
	}
	switch i.typ {
	case typeDirectory:
		b = putUvarint(b, i.entries)
	case typeSymlink:
		b = putString(b, i.target)
	case typeFile:
		b = putUvarint(b, uint64(i.size))
		b = putFixed64(b, uint64(i.generation))
		b = append(b, byte(i.level))
		if i.content != 0 {
			b = putUvarint(b, uint64(i.stored))
			b = putUvarint(b, i.degraded)
			b = putUvarint(b, i.content)
			b = putUvarint(b, i.refs)
			b = putUvarint(b, uint64(i.lastEnd))
		}
	}
	if i.name != "" {
		b = putString(b, i.name)
	}
	if i.object != 0 {
		b = putFixed64(putFixed64(b, uint64(i.object)), uint64(i.objectGen))
	}
	if i.evicted != 0 {
		b = putUvarint(b, uint64(i.evicted))
	}
	if i.step != (stepID{}) {
		b = i.step.encode(b)
	}
	return b
}

// flags says which parts of the record follow.
func (i *inode) flags() (flags uint16) {
	for bit, set := range [10]bool{
		i.manyLinks, i.owner != 0, i.content != 0, i.name != "", i.xattrs, i.object != 0, i.evicted != 0, i.policy,
		i.sealed, i.step != (stepID{}),
	} {
		if set {
			flags |= 1 << bit
		}
	}
	return flags
}

func (i *inode) decode(b []byte) error {
	d := dec{b: b}
	d.version(inodeVersion)
	i.typ = d.byte()
	flags := uint16(min(d.uvarint(), inodeFlagsEnd))
	const ofFiles, ofDirs = inodeContent | inodeObject | inodeEvicted, inodePolicy | inodeStep
	if flags >= inodeFlagsEnd || (flags&ofFiles != 0 && i.typ != typeFile) || (flags&ofDirs != 0 && i.typ != typeDirectory) {
		d.fail(fmt.Errorf("flags %02x of type %d", flags, i.typ))
	}
	i.manyLinks = flags&inodeManyLinks != 0
	i.mode = d.u32()
	i.uid = d.u32()
	i.gid = d.u32()
	i.nlink = d.u32()
	i.tenant = moraine.Tenant(d.u32())
	i.parent = moraine.InodeID(d.fixed64())
	i.atime = int64(d.fixed64())
	i.mtime = int64(d.fixed64())
	i.ctime = int64(d.fixed64())
	if flags&inodeOwned != 0 {
		i.owner = moraine.SessionID(d.fixed64())
	}
	switch i.typ {
	case typeDirectory:
		i.entries = d.uvarint()
	case typeSymlink:
		i.target = d.string()
	case typeFile:
		i.size = int64(d.uvarint())
		i.generation = moraine.Generation(d.fixed64())
		i.level = moraine.Level(d.byte())
		if flags&inodeContent != 0 {
			i.stored = int64(d.uvarint())
			i.degraded = d.uvarint()
			i.content = d.uvarint()
			i.refs = d.uvarint()
			i.lastEnd = int64(d.uvarint())
		}
	default:
		d.fail(fmt.Errorf("file type %d", i.typ))
	}
	i.xattrs, i.policy = flags&inodeXattrs != 0, flags&inodePolicy != 0
	if flags&inodeNamed != 0 {
		i.name = d.string()
	}
	if flags&inodeObject != 0 {
		i.object, i.objectGen = moraine.ObjectID(d.fixed64()), moraine.Generation(d.fixed64())
	}
	if flags&inodeEvicted != 0 {
		i.evicted = int64(d.uvarint())
	}
	i.sealed = flags&inodeSealed != 0
	if flags&inodeStep != 0 {
		i.step.decode(&d)
	}
	if flags != i.flags() {
		d.fail(fmt.Errorf("flags %02x promise what is 0", flags))
	}
	return d.end("inode")
}

// attr returns the inode as clients see it.
func (i *inode) attr() *wire.Attr {
	return &wire.Attr{
		Inode: uint64(i.id), Type: wire.FileType(i.typ), Mode: i.mode, Uid: i.uid, Gid: i.gid, Nlink: i.nlink,
		Size: uint64(i.size), Generation: uint64(i.generation), Atime: i.atime, Mtime: i.mtime, Ctime: i.ctime,
		Parent: uint64(i.parent), Tenant: uint32(i.tenant), Level: uint32(i.level), Target: i.target,
		Stored: uint64(i.stored), Degraded: i.degraded, Clean: i.clean(), Evicted: i.evicted != 0, Object: uint64(i.object),
		Sealed: i.sealed,
	}
}

// count and uncount keep the sums of what the tables of the file hold.
func (i *inode) count(h tableHead) {
	i.stored += h.bytes
	i.evicted += h.evicted
}

func (i *inode) uncount(h tableHead) {
	i.stored -= h.bytes
	i.evicted -= h.evicted
}

// clean reports whether an object holds the whole of the present generation.
func (i *inode) clean() bool { return i.object != 0 && i.objectGen == i.generation }

// dropContent makes the file empty and returns the content that it had, which
// the caller discards.
func (i *inode) dropContent() (old uint64) {
	old = i.content
	i.content, i.refs, i.lastEnd, i.stored, i.evicted, i.size = 0, 0, 0, 0, 0, 0
	return old
}

// detach notes that no directory names the inode any more.
func (i *inode) detach() { i.parent, i.name = 0, "" }

func cachedReply(i *inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: i.cachedAttr()}}}
}

func entryReply(i *inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: i.attr()}}}
}

// inode returns the inode id; NotFound where there is none.
func (v *view) inode(id moraine.InodeID) (*inode, error) {
	b, ok, err := v.r.Get(v.k.inode(id))
	if err != nil {
		return nil, err
	}
	if !ok {
		if v.seen != nil {
			v.seen.Missing = append(v.seen.Missing, id)
		}
		return nil, noInode(id)
	}
	i := &inode{id: id}
	if err := i.decode(b); err != nil {
		return nil, err
	}
	i.leased, i.home = i.lease(), i.parent
	return i, nil
}

// inode is view.inode for change: within one command every call with the same
// id returns the same record, so that no handler overwrites what another one
// of the command changed.
func (t *tx) inode(id moraine.InodeID) (*inode, error) {
	if i := t.inodes[id]; i != nil {
		return i, nil
	}
	t.read = append(t.read, id)
	i, err := t.view.inode(id)
	if err != nil {
		if moraineKind(err) == moraine.NotFound {
			t.mindNumber(id)
		}
		return nil, err
	}
	t.remember(i)
	return i, nil
}

func (t *tx) remember(i *inode) {
	if t.inodes == nil {
		t.inodes = make(map[moraine.InodeID]*inode, 4)
	}
	t.inodes[i.id] = i
}

// putInode writes a changed inode.
func (t *tx) putInode(i *inode) {
	t.put(t.k.inode(i.id), i.encode())
	t.touch(i)
}

// delInode takes an inode's record away, with what hangs on it alone.
func (t *tx) delInode(i *inode) error {
	if err := t.m.forgetMoves(t, i); err != nil {
		return err
	}
	if i.object != 0 {
		if err := t.m.releaseNewest(t, i); err != nil {
			return err
		}
	}
	if i.policy {
		t.del(t.k.policy(i.id))
		t.count[cPolicies]--
	}
	if i.typ == typeDirectory {
		t.mindHold(i.id)
		if t.session != nil {
			if err := t.dropHold(i.id, t.session.id, 0); err != nil {
				return err
			}
		}
		if err := t.dropQuota(i.id); err != nil {
			return err
		}
		if err := t.dropHeight(i.id); err != nil {
			return err
		}
	}
	if i.xattrs {
		keys, err := t.keysUnder(t.k.xattrs(i.id), MaxXattrs)
		if err != nil {
			return err
		}
		for _, key := range keys {
			t.del(key)
		}
	}
	t.del(t.k.inode(i.id))
	delete(t.inodes, i.id)
	t.count[cInodes]--
	t.touchAttr(i, Removed)
	return nil
}

// dentry is an entry of a directory.
type dentry struct {
	inode moraine.InodeID
	typ   uint8
}

const dentryVersion = 1

func (e dentry) encode() []byte {
	return putFixed64(append(newValue(dentryVersion, 10), e.typ), uint64(e.inode))
}

func decodeDentry(b []byte) (dentry, error) {
	d := dec{b: b}
	d.version(dentryVersion)
	e := dentry{typ: d.byte()}
	e.inode = moraine.InodeID(d.fixed64())
	return e, d.end("dentry")
}

// lookup finds an entry of a directory.
func (v *view) lookup(dir moraine.InodeID, name string) (dentry, bool, error) {
	b, ok, err := v.r.Get(v.k.dentry(dir, name))
	if err != nil || !ok {
		return dentry{}, false, err
	}
	e, err := decodeDentry(b)
	return e, err == nil, err
}

// lastU64 returns the number that a key ends with.
func lastU64(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }
