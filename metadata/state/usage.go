package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// usageKey names a count: of a directory, in one of two columns. One column is
// in force; the other one is being built by a recount, or taken away after it.
type usageKey struct {
	column uint8
	dir    moraine.InodeID
}

// usageCell is what a batch knows of a count.
type usageCell struct {
	cell  *cell
	now   record.Usage
	dirty bool
}

// usageCell returns the cell of a count, read from the store if need be.
func (b *Batch) usageCell(k usageKey) (*usageCell, error) {
	if c := b.usage[k]; c != nil {
		return c, nil
	}
	key := b.k.usage(k.column, k.dir)
	below, err := b.load(key)
	if err != nil {
		return nil, err
	}
	c := &usageCell{cell: below}
	if below.exists {
		if err := c.now.Decode(below.value); err != nil {
			return nil, err
		}
	}
	if b.usage == nil {
		b.usage = make(map[usageKey]*usageCell, 16)
	}
	b.usage[k] = c
	return c, nil
}

// mergeUsage takes over what a command counted.
func (b *Batch) mergeUsage(t *tx) {
	for _, e := range t.usage.list {
		if e.delta.Zero() {
			continue
		}
		e.cell.now = e.cell.now.Add(e.delta)
		if !e.cell.dirty {
			e.cell.dirty = true
			b.dirtyUsage = append(b.dirtyUsage, e.cell)
		}
	}
}

// pushUsage has the counts that changed written with the other cells: once for
// all the commands of an entry.
func (b *Batch) pushUsage() {
	for _, c := range b.dirtyUsage {
		c.dirty = false
		c.cell.value, c.cell.exists = nil, !c.now.Zero()
		if c.cell.exists {
			c.cell.value = c.now.Encode()
		}
		b.markDirty(c.cell)
	}
	b.dirtyUsage = b.dirtyUsage[:0]
}

// usageEntry is what one command changes of one count.
type usageEntry struct {
	usageKey
	cell  *usageCell
	delta record.Usage
	// free is the part of delta that no quota is asked about.
	free record.Usage
}

// usageSet holds what one command changes of counts. Few commands change more
// than those of a path.
type usageSet struct {
	list  []usageEntry
	index map[usageKey]int // once the list is long
}

const shortUsage = 24

func (s *usageSet) reset() { s.list, s.index = s.list[:0], nil }

func (s *usageSet) find(k usageKey) *usageEntry {
	if s.index != nil {
		if n, ok := s.index[k]; ok {
			return &s.list[n]
		}
		return nil
	}
	for n := range s.list {
		if s.list[n].usageKey == k {
			return &s.list[n]
		}
	}
	return nil
}

func (s *usageSet) insert(e usageEntry) *usageEntry {
	s.list = append(s.list, e)
	switch {
	case s.index != nil:
		s.index[e.usageKey] = len(s.list) - 1
	case len(s.list) > shortUsage:
		s.index = make(map[usageKey]int, 2*len(s.list))
		for n := range s.list {
			s.index[s.list[n].usageKey] = n
		}
	}
	return &s.list[len(s.list)-1]
}

// countUsage adds to one count.
func (t *tx) countUsage(k usageKey, delta record.Usage, free bool) error {
	e := t.usage.find(k)
	if e == nil {
		c, err := t.b.usageCell(k)
		if err != nil {
			return err
		}
		e = t.usage.insert(usageEntry{usageKey: k, cell: c})
	}
	e.delta = e.delta.Add(delta)
	if free {
		e.free = e.free.Add(delta)
	}
	return nil
}

// usageNow returns a count as the command has it so far.
func (t *tx) usageNow(k usageKey) (record.Usage, error) {
	if e := t.usage.find(k); e != nil {
		return e.cell.now.Add(e.delta), nil
	}
	c, err := t.b.usageCell(k)
	if err != nil {
		return record.Usage{}, err
	}
	return c.now, nil
}

// usage returns a count as the store has it.
func (v *view) usage(k usageKey) (record.Usage, error) {
	var u record.Usage
	b, ok, err := v.r.Get(v.k.usage(k.column, k.dir))
	if err != nil || !ok {
		return u, err
	}
	return u, u.Decode(b)
}

// seat is what of an inode's record decides where it counts, and as what.
type seat struct {
	there  bool
	typ    uint8
	nlink  uint32
	parent moraine.InodeID
	size   int64
	step   bool // it is the directory of a committed checkpoint
}

// seatOf reads that much of a record.
func seatOf(b []byte) (seat, error) {
	d := record.Dec{B: b}
	d.Version(record.InodeVersion)
	s := seat{there: true, typ: d.Byte()}
	flags := d.Uvarint()
	s.step = flags&record.InodeStep != 0
	d.Uvarint() // mode
	d.Uvarint() // uid
	d.Uvarint() // gid
	s.nlink = d.U32()
	d.Uvarint() // tenant
	s.parent = moraine.InodeID(d.Fixed64())
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

// own is what the inode itself counts as.
func (s seat) own() record.Usage {
	if !s.there {
		return record.Usage{}
	}
	u := record.Usage{Bytes: s.size, Inodes: 1}
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

// moved reports whether what it counts in has changed.
func (c *seatChange) moved() bool { return c.before.parent != c.after.parent }

// lostName reports whether a file came to another of its directories because it
// lost its name in the first: nobody wanted it there.
func (c *seatChange) lostName() bool {
	return c.before.there && c.after.there && c.after.typ != record.TypeDirectory && c.after.nlink < c.before.nlink
}

// seatChanges returns the inodes that the command wrote, in the order of their
// first write, if where or what they count may have changed.
func (t *tx) seatChanges() ([]seatChange, error) {
	var out []seatChange
	for _, cell := range t.order {
		if len(cell.key) != 11 || cell.key[2] != record.TabInode {
			continue
		}
		w, c := cell.want, seatChange{id: moraine.InodeID(binary.BigEndian.Uint64([]byte(cell.key[3:])))}
		if !w.fresh {
			was, err := t.b.load([]byte(cell.key))
			if err != nil {
				return nil, err
			}
			if was.exists {
				if c.before, err = seatOf(was.value); err != nil {
					return nil, badSeat(c.id, err)
				}
			}
		}
		if w.exists {
			var err error
			if c.after, err = seatOf(w.value); err != nil {
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

// applyUsage counts what the command did, and holds it against the quotas.
func (m *Machine) applyUsage(t *tx) error {
	if len(t.order) == 0 {
		return nil
	}
	changes, err := t.seatChanges()
	if err != nil || len(changes) == 0 {
		return err
	}
	if err := t.updateHeights(changes); err != nil {
		return err
	}
	s, err := look[record.UsageState](&t.view, t.k.meta(record.MetaUsage))
	if err != nil || s == nil || s.Live == 0 && s.Building == 0 {
		return err
	}
	if s.Live != 0 {
		if err := t.applyColumn(s.Live, changes, ^moraine.InodeID(0)); err != nil {
			return err
		}
	}
	if s.Building != 0 {
		if err := t.applyColumn(s.Building, changes, s.Counted); err != nil {
			return err
		}
	}
	if s.Live == 0 || s.Quotas == 0 || t.ignoresQuota {
		return nil
	}
	return m.holdQuotas(t, s)
}

// applyColumn brings one column in step with the changes. Of inodes past
// counted only what is below them is in it yet.
func (t *tx) applyColumn(column uint8, changes []seatChange, counted moraine.InodeID) error {
	w := usageWalk{t: t, column: column}
	// While the changes are taken one by one, a directory that moves is below
	// what it was below, then below nothing, then below what it is to be below.
	// So each step leaves every count right for the tree as it is then.
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
		if err := t.mayMoveTree(c, what); err != nil {
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

// usageWalk goes up the tree as it is while changes are taken one by one.
type usageWalk struct {
	t      *tx
	column uint8
	seats  map[moraine.InodeID]moraine.InodeID // of directories that the command moved, or took away
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

// whole returns what an inode counts as, with all that is below it.
func (w *usageWalk) whole(id moraine.InodeID, s seat, counted moraine.InodeID) (record.Usage, error) {
	var u record.Usage
	if id <= counted {
		u = s.own()
	}
	if s.typ != record.TypeDirectory {
		return u, nil
	}
	below, err := w.t.usageNow(usageKey{w.column, id})
	return u.Add(below), err
}

// parent returns the directory that a directory counts in at this step.
func (w *usageWalk) parent(dir moraine.InodeID) (moraine.InodeID, error) {
	if p, ok := w.seats[dir]; ok {
		return p, nil
	}
	return w.t.parent(dir)
}

// count adds to the counts of a directory and of all above it. Each of them costs,
// so that nothing is made more than maxDepth directories deep; what is deeper
// already may be changed and removed.
func (w *usageWalk) count(dir moraine.InodeID, what record.Usage, free bool) error {
	if what.Zero() {
		return nil
	}
	for depth := 0; dir != 0; depth++ {
		if depth > maxDepth && what.Inodes > 0 && !free {
			return fail(moraine.TooLarge, "usage", dir.String(), "more than %d directories deep: make it higher up", maxDepth)
		}
		if err := w.t.countUsage(usageKey{w.column, dir}, what, free); err != nil {
			return err
		}
		var err error
		if dir, err = w.parent(dir); err != nil {
			return err
		}
	}
	return nil
}
