package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Touch notes that what clients may cache of an inode has changed. One that goes
// from one lease to another is touched under both.
func Touch(t *kvtx.Tx, i *record.Inode) { TouchAttr(t, i, kvtx.Changed) }

func TouchAttr(t *kvtx.Tx, i *record.Inode, change kvtx.Change) {
	now := i.Lease()
	if i.Typ == record.TypeDirectory {
		MindHold(t, i.Id)
	}
	if t.Touched == nil {
		t.Touched = make([]kvtx.Touch, 0, 4) // enough for most commands
	}
	t.Touched = append(t.Touched, kvtx.Touch{Lease: now, Inode: i.Id, Change: change})
	if i.Leased != now && i.Leased != 0 {
		t.Touched = append(t.Touched, kvtx.Touch{Lease: i.Leased, Inode: i.Id, Change: change})
	}
	if i.Typ == record.TypeDirectory && i.Leased != 0 && i.Home != i.Parent {
		t.Events.TreeMoved = true
	}
}

// TouchEntry notes that dir got or lost an entry.
func TouchEntry(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode, change kvtx.Change) {
	MindHold(t, dir.Id)
	if t.Touched == nil {
		t.Touched = make([]kvtx.Touch, 0, 4)
	}
	t.Touched = append(t.Touched, kvtx.Touch{Lease: dir.Id, Inode: child.Id, Name: name, Change: change})
	if change == kvtx.Removed && child.Typ == record.TypeDirectory {
		t.Events.DirUnnamed = true
	}
}

// SawEntry and sawAttr note what an answer shows. They cost nothing where nobody
// asked.
func SawEntry(v *kvtx.View, dir moraine.InodeID, name string) {
	if v.Seen != nil {
		v.Seen.Touches = append(v.Seen.Touches, kvtx.Touch{Lease: dir, Name: name})
	}
}

func SawAttr(v *kvtx.View, i *record.Inode) {
	if v.Seen != nil {
		v.Seen.Touches = append(v.Seen.Touches, kvtx.Touch{Lease: i.Lease(), Inode: i.Id})
	}
}
