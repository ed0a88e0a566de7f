package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Touch records that cacheable attributes of an inode changed. If its lease changes, it is touched
// under both leases.
func Touch(t *kvtx.Tx, i *record.Inode) { TouchAttr(t, i, kvtx.Changed) }

// TouchAttr is Touch with a kind of change.
func TouchAttr(t *kvtx.Tx, i *record.Inode, change kvtx.Change) {
	now := i.Lease()
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

// TouchEntry records that dir gained or lost an entry.
func TouchEntry(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode, change kvtx.Change) {
	if t.Touched == nil {
		t.Touched = make([]kvtx.Touch, 0, 4)
	}
	t.Touched = append(t.Touched, kvtx.Touch{Lease: dir.Id, Inode: child.Id, Name: name, Change: change})
	if change == kvtx.Removed && child.Typ == record.TypeDirectory {
		t.Events.DirUnnamed = true
	}
}

// SawEntry and SawAttr record the cacheable items that an answer shows. They do nothing if the
// caller does not collect them.
func SawEntry(v *kvtx.View, dir moraine.InodeID, name string) {
	if v.Seen != nil {
		v.Seen.Touches = append(v.Seen.Touches, kvtx.Touch{Lease: dir, Name: name})
	}
}

// SawAttr records that the answer shows the attributes of i.
func SawAttr(v *kvtx.View, i *record.Inode) {
	if v.Seen != nil {
		v.Seen.Touches = append(v.Seen.Touches, kvtx.Touch{Lease: i.Lease(), Inode: i.Id})
	}
}
