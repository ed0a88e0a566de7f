package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
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

// touch notes that what clients may cache of an inode has changed. One that goes
// from one lease to another is touched under both.
func (t *tx) touch(i *record.Inode) { t.touchAttr(i, Changed) }

func (t *tx) touchAttr(i *record.Inode, change Change) {
	now := i.Lease()
	if i.Typ == record.TypeDirectory {
		t.mindHold(i.Id)
	}
	if t.touched == nil {
		t.touched = make([]Touch, 0, 4) // enough for most commands
	}
	t.touched = append(t.touched, Touch{Lease: now, Inode: i.Id, Change: change})
	if i.Leased != now && i.Leased != 0 {
		t.touched = append(t.touched, Touch{Lease: i.Leased, Inode: i.Id, Change: change})
	}
	if i.Typ == record.TypeDirectory && i.Leased != 0 && i.Home != i.Parent {
		t.events.TreeMoved = true
	}
}

// touchEntry notes that dir got or lost an entry.
func (t *tx) touchEntry(dir *record.Inode, name string, child *record.Inode, change Change) {
	t.mindHold(dir.Id)
	if t.touched == nil {
		t.touched = make([]Touch, 0, 4)
	}
	t.touched = append(t.touched, Touch{Lease: dir.Id, Inode: child.Id, Name: name, Change: change})
	if change == Removed && child.Typ == record.TypeDirectory {
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

func (v *view) sawAttr(i *record.Inode) {
	if v.seen != nil {
		v.seen.Touches = append(v.seen.Touches, Touch{Lease: i.Lease(), Inode: i.Id})
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
