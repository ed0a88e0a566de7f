package usage

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// usage returns a count from the store.
func usage(v *kvtx.View, k kvtx.UsageKey) (record.Usage, error) {
	var u record.Usage
	b, ok, err := v.R.Get(v.K.Usage(k.Column, k.Dir))
	if err != nil || !ok {
		return u, err
	}
	return u, u.Decode(b)
}

// seat is the part of an inode's record that determines where and how it counts.
type seat struct {
	there  bool
	typ    uint8
	nlink  uint32
	parent moraine.InodeID
	size   int64
	step   bool // it is the directory of a committed checkpoint
	// reserved is what the ranks of an open checkpoint will write into the directory.
	reserved int64
}

// seatOf reads that part of a record.
func seatOf(b []byte) (seat, error) {
	d := record.Dec{B: b}
	d.Version(record.InodeVersion)
	s := seat{there: true, typ: d.Byte()}
	flags := d.Uvarint()
	s.step = flags&record.InodeStep != 0 && flags&record.InodeNamed != 0
	d.Uvarint() // mode
	d.Uvarint() // uid
	d.Uvarint() // gid
	s.nlink = d.U32()
	d.Uvarint() // tenant
	s.parent = moraine.InodeID(d.Fixed64())
	if flags&record.InodeStep != 0 && !s.step {
		var dir record.Inode
		err := dir.Decode(b)
		s.reserved = int64(dir.Reserved)
		return s, err
	}
	if s.typ != record.TypeFile {
		return s, d.Err
	}
	d.Fixed64() // atime
	d.Fixed64() // mtime
	d.Fixed64() // ctime
	if flags&record.InodeOwned != 0 {
		d.Fixed64()
	}
	s.size = int64(d.Uvarint())
	return s, d.Err
}

// own returns what the inode itself counts as.
func (s seat) own() record.Usage {
	if !s.there {
		return record.Usage{}
	}
	u := record.Usage{Bytes: s.size + s.reserved, Inodes: 1}
	if s.step {
		u.Steps = 1
	}
	return u
}

// seatChange is an inode whose record a command wrote.
type seatChange struct {
	id            moraine.InodeID
	before, after seat
}

// moved reports whether the directory that counts it changed.
func (c *seatChange) moved() bool { return c.before.parent != c.after.parent }

// lostName reports whether a file's parent changed only because it lost its name in the former one.
// Nobody requested that move.
func (c *seatChange) lostName() bool {
	return c.before.there && c.after.there && c.after.typ != record.TypeDirectory && c.after.nlink < c.before.nlink
}

// seatChanges returns the inodes that the command wrote, in the order of their first write, if
// their place or count may have changed.
func seatChanges(t *kvtx.Tx) ([]seatChange, error) {
	var out []seatChange
	for _, cell := range t.Order {
		if len(cell.Key) != 11 || cell.Key[2] != record.TabInode {
			continue
		}
		w, c := cell.Want, seatChange{id: moraine.InodeID(binary.BigEndian.Uint64([]byte(cell.Key[3:])))}
		if !w.Fresh {
			if err := t.B.Fill(cell); err != nil {
				return nil, err
			}
			if cell.Exists {
				var err error
				if c.before, err = seatOf(cell.Value); err != nil {
					return nil, badSeat(c.id, err)
				}
			}
		}
		if w.Exists {
			var err error
			if c.after, err = seatOf(w.Value); err != nil {
				return nil, badSeat(c.id, err)
			}
		}
		if c.moved() || c.before.own() != c.after.own() {
			out = append(out, c)
		}
	}
	return out, nil
}

func badSeat(id moraine.InodeID, err error) error {
	return &moraine.Error{Op: "decode inode", Ref: id.String(), Kind: moraine.Corrupt, Err: err}
}

// ApplyUsage counts the command's changes and checks the quotas.
func ApplyUsage(t *kvtx.Tx) error {
	if len(t.Order) == 0 {
		return nil
	}
	changes, err := seatChanges(t)
	if err != nil || len(changes) == 0 {
		return err
	}
	if err := updateHeights(t, changes); err != nil {
		return err
	}
	s, err := kvtx.Look[record.UsageState](&t.View, t.K.Meta(record.MetaUsage))
	if err != nil || s == nil { // Init writes it
		return err
	}
	if err := applyColumn(t, s.Live, changes, ^moraine.InodeID(0)); err != nil {
		return err
	}
	if s.Building != 0 {
		if err := applyColumn(t, s.Building, changes, s.Counted); err != nil {
			return err
		}
	}
	if s.Quotas == 0 || t.IgnoresQuota {
		return nil
	}
	return holdQuotas(t, s)
}

// applyColumn updates one column with the changes. For an inode after counted, the column has only
// what is below it.
func applyColumn(t *kvtx.Tx, column uint8, changes []seatChange, counted moraine.InodeID) error {
	w := usageWalk{t: t, column: column}
	// The changes are applied one by one. A directory that moves is first below its old parent,
	// then below none, then below its new parent. After each step every count is right for the tree
	// at that step.
	for n := range changes {
		c := &changes[n]
		if dir := c.before.typ == record.TypeDirectory || c.after.typ == record.TypeDirectory; dir && (c.moved() || !c.after.there) {
			w.seat(c.id, c.before.parent)
		}
	}
	for n := range changes {
		c := &changes[n]
		if !c.moved() {
			continue
		}
		what, err := w.whole(c.id, c.before, counted)
		if err != nil {
			return err
		}
		if err := mayMoveTree(t, c, what); err != nil {
			return err
		}
		if err := w.count(c.before.parent, what.Neg(), c.lostName()); err != nil {
			return err
		}
		w.unseat(c.id)
	}
	for n := range changes {
		c := &changes[n]
		what, to := record.Usage{}, c.after.parent
		switch {
		case c.moved():
			var err error
			if what, err = w.whole(c.id, c.after, counted); err != nil {
				return err
			}
		case c.id <= counted:
			what = c.after.own().Add(c.before.own().Neg())
		}
		if err := w.count(to, what, c.lostName()); err != nil {
			return err
		}
		if c.moved() {
			w.reseat(c.id, to)
		}
	}
	return nil
}

// usageWalk walks up the tree as it is between the single changes.
type usageWalk struct {
	t      *kvtx.Tx
	column uint8
	seats  map[moraine.InodeID]moraine.InodeID // of directories that the command moved or removed
}

func (w *usageWalk) seat(id, parent moraine.InodeID) {
	if w.seats == nil {
		w.seats = make(map[moraine.InodeID]moraine.InodeID, 4)
	}
	w.seats[id] = parent
}

func (w *usageWalk) unseat(id moraine.InodeID) { w.reseat(id, 0) }

func (w *usageWalk) reseat(id, parent moraine.InodeID) {
	if _, ok := w.seats[id]; ok {
		w.seats[id] = parent
	}
}

// whole returns the count of an inode with everything below it.
func (w *usageWalk) whole(id moraine.InodeID, s seat, counted moraine.InodeID) (record.Usage, error) {
	var u record.Usage
	if id <= counted {
		u = s.own()
	}
	if s.typ != record.TypeDirectory {
		return u, nil
	}
	below, err := w.t.UsageNow(kvtx.UsageKey{Column: w.column, Dir: id})
	return u.Add(below), err
}

// parent returns the directory that counts a directory at this step.
func (w *usageWalk) parent(dir moraine.InodeID) (moraine.InodeID, error) {
	if p, ok := w.seats[dir]; ok {
		return p, nil
	}
	return parent(w.t, dir)
}

// count adds to the counts of a directory and of all above it. Each costs time, which is why
// MaxDepth bounds the depth of new inodes. Deeper ones may be changed and removed.
func (w *usageWalk) count(dir moraine.InodeID, what record.Usage, free bool) error {
	if what.Zero() {
		return nil
	}
	for depth := 0; dir != 0; depth++ {
		if depth > kvtx.MaxDepth && what.Inodes > 0 && !free {
			return kvtx.Fail(moraine.TooLarge, "usage", dir.String(), "the entry would be more than %d directories deep: create it higher up", kvtx.MaxDepth)
		}
		if err := w.t.CountUsage(kvtx.UsageKey{Column: w.column, Dir: dir}, what, free); err != nil {
			return err
		}
		var err error
		if dir, err = w.parent(dir); err != nil {
			return err
		}
	}
	return nil
}
