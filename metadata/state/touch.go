package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// Touch is one thing that a command changed, or an answer shows, of what clients
// may cache: an entry of a directory, or the attributes of an inode.
type Touch struct {
	// Lease is the inode whose lease covers it: the directory of an entry, and of
	// a file in it; a directory, or a file that ever had two names, itself; 0
	// where nothing does, as with a file without a name.
	Lease moraine.InodeID
	// Inode has the attributes; of an entry, it is what got or lost the name, 0
	// in an answer that shows none.
	Inode moraine.InodeID
	// Name is that of the entry; empty for attributes.
	Name   string
	Change Change
}

// Change is what happened to what a Touch names.
type Change uint8

const (
	// Changed: attributes, or the content with its generation.
	Changed Change = iota
	// Added: an entry.
	Added
	// Removed: an entry, or, without a name, the inode itself.
	Removed
	// Taken: nothing changed, but a session got the exclusive lease on the directory.
	Taken
)

// lease returns the inode whose lease covers the inode's attributes, 0 for none.
func (i *inode) lease() moraine.InodeID {
	return moraine.InodeID(wire.LeaseOver(uint64(i.id), uint64(i.parent), i.typ == typeDirectory, i.manyLinks))
}

// touch notes that what clients may cache of an inode has changed. One that goes
// from one lease to another is touched under both.
func (t *tx) touch(i *inode) { t.touchAttr(i, Changed) }

func (t *tx) touchAttr(i *inode, change Change) {
	now := i.lease()
	if i.typ == typeDirectory {
		t.mindHold(i.id)
	}
	if t.touched == nil {
		t.touched = make([]Touch, 0, 4) // enough for most commands
	}
	t.touched = append(t.touched, Touch{Lease: now, Inode: i.id, Change: change})
	if i.leased != now && i.leased != 0 {
		t.touched = append(t.touched, Touch{Lease: i.leased, Inode: i.id, Change: change})
	}
	if i.typ == typeDirectory && i.leased != 0 && i.home != i.parent {
		t.events.TreeMoved = true
	}
}

// touchEntry notes that dir got or lost an entry.
func (t *tx) touchEntry(dir *inode, name string, child *inode, change Change) {
	t.mindHold(dir.id)
	if t.touched == nil {
		t.touched = make([]Touch, 0, 4)
	}
	t.touched = append(t.touched, Touch{Lease: dir.id, Inode: child.id, Name: name, Change: change})
	if change == Removed && child.typ == typeDirectory {
		t.events.DirUnnamed = true
	}
}

// Seen is what an answer shows of what may be cached. Changes that others may
// not know of yet must not show in it.
type Seen struct {
	Touches []Touch
	// Missing are inodes that were asked for and are not there.
	Missing []moraine.InodeID
	// All says that the answer may show anything.
	All bool
}

// sawEntry and sawAttr note what an answer shows. They cost nothing where nobody
// asked.
func (v *view) sawEntry(dir moraine.InodeID, name string) {
	if v.seen != nil {
		v.seen.Touches = append(v.seen.Touches, Touch{Lease: dir, Name: name})
	}
}

func (v *view) sawAttr(i *inode) {
	if v.seen != nil {
		v.seen.Touches = append(v.seen.Touches, Touch{Lease: i.lease(), Inode: i.id})
	}
}

// ReadSeen is Read that also says what the answer shows.
func (m *Machine) ReadSeen(r Reader, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, Seen, error) {
	var seen Seen
	v := m.view(r)
	v.seen = &seen
	resp, err := m.read(v, caller, req)
	switch req.GetOp().(type) {
	case *wire.MetaRequest_GetAttr, *wire.MetaRequest_Lookup, *wire.MetaRequest_Walk, *wire.MetaRequest_ReadDir,
		*wire.MetaRequest_GetExtents, *wire.MetaRequest_GetXattr:
		// A failure shows what it met, and a look-up that found nothing, the entry.
		_, lookup := req.GetOp().(*wire.MetaRequest_Lookup)
		seen.All = err != nil && (!lookup || len(seen.Touches) == 0)
	default:
		seen.All = true
	}
	if err == nil {
		return resp, seen, nil
	}
	if !isAnswer(err) {
		return nil, seen, err
	}
	return &wire.MetaResponse{Error: WireError(err)}, seen, nil
}

// cachedAttr is the inode as clients see it who may cache it: with what tells
// them which lease covers it, and what they need not ask for. It is not used in
// the answers that the state keeps.
func (i *inode) cachedAttr() *wire.Attr {
	a := i.attr()
	a.ManyLinks, a.Xattrs = i.manyLinks, i.xattrs
	return a
}
