package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// A file whose level is below nvme has a row, which says how far from its beginning
// on its stripes are known to be at nvme. The leader goes through the rows: where the
// end is reached the file is at nvme, and the row goes. What is lost behind the first
// of its extents that is not there the leader looks for apart (lostlook.go). A row may
// also be that of a file which is gone, or in an object while chunks of it are in memory still; never is a
// file below nvme without one.

const (
	// MaxRaised is the most files that one command raises, raiseExtents the most
	// extents of each that it looks at, and raiseBudget of all.
	MaxRaised    = 64
	raiseExtents = 200
	raiseBudget  = 600
	// lostRanges is the most lost ranges of a file that an answer has.
	lostRanges = 64
)

// levelLost is the level of a file that has lost bytes which were in memory alone:
// they are at none. It has content, unlike other files without a level.
const levelLost moraine.Level = 0

// lost reports whether bytes of the file were in memory alone, and are gone.
func (i *inode) lost() bool { return i.content != 0 && i.level == levelLost }

// unsafeFile is a row.
type unsafeFile struct {
	generation moraine.Generation
	upTo       int64 // below this all is at nvme
	// Of a file that is recorded as lost, where that needs more than one look. With found
	// something was lost at mark. Without, nothing was between upTo and mark, by the look
	// for what is lost that is under way; 0: it has not begun.
	mark  int64
	found bool
}

const unsafeVersion = 1

func (u unsafeFile) encode() []byte {
	b := putUvarint(putFixed64([]byte{unsafeVersion}, uint64(u.generation)), uint64(u.upTo))
	return putBool(putUvarint(b, uint64(u.mark)), u.found)
}

func (u *unsafeFile) decode(b []byte) error {
	d := dec{b: b}
	d.version(unsafeVersion)
	u.generation, u.upTo = moraine.Generation(d.fixed64()), int64(d.uvarint())
	u.mark, u.found = int64(d.uvarint()), d.bool()
	return d.end("file below nvme")
}

// watchLevel gives a file a row whose level is below nvme. The caller writes the file.
func (t *tx) watchLevel(i *inode) error {
	if i.content == 0 || i.level >= moraine.NVMe {
		return nil
	}
	return t.watch(i)
}

// watch gives a file a row, whatever its level is.
func (t *tx) watch(i *inode) error {
	if ok, err := t.speaks(LevelMemory); !ok || err != nil {
		return err
	}
	t.put(t.k.unsafeFile(i.id), unsafeFile{}.encode())
	return nil
}

// levelBeside is the level of what a file has beside an object that holds all of it:
// of content that shares its stripes, or that is to follow it.
func (v *view) levelBeside(i *inode) (moraine.Level, error) {
	if i.level <= moraine.NVMe {
		return i.level, nil
	}
	_, ok, err := v.r.Get(v.k.unsafeFile(i.id))
	if ok {
		return moraine.Memory, err // it was not seen to be safer
	}
	return moraine.NVMe, err
}

// raiseLevels looks at files with rows, as far as its budget goes.
func (m *Machine) raiseLevels(t *tx, op *statepb.RaiseLevels) (*wire.MetaResponse, error) {
	if n := len(op.GetInodes()) + len(op.GetLost()); n > MaxRaised {
		return nil, fail(moraine.TooLarge, "raise levels", "", "%d files, %d at most", n, MaxRaised)
	}
	left := raiseBudget
	for _, id := range op.GetInodes() {
		looked, err := m.raiseLevel(t, moraine.InodeID(id), min(left, raiseExtents))
		if err != nil {
			return nil, err
		}
		if left -= looked; left <= 0 {
			break
		}
	}
	for _, at := range op.GetLost() {
		if err := m.loseLevel(t, FilePlace{moraine.InodeID(at.GetInode()), int64(at.GetOffset())}); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// raiseLevel gives a file the level that its stripes have, if that can be told by
// looking at limit extents, and notes how far it came.
func (m *Machine) raiseLevel(t *tx, id moraine.InodeID, limit int) (looked int, err error) {
	g, err := t.gauge(id, limit)
	if err != nil || !g.changed {
		return g.looked, err
	}
	if g.over {
		t.del(t.k.unsafeFile(id))
	} else {
		t.put(t.k.unsafeFile(id), g.row.encode())
	}
	if g.file == nil || g.level == g.file.level {
		return g.looked, nil
	}
	i, err := t.inode(id)
	if err != nil {
		return g.looked, err
	}
	if i.level == levelLost || g.level == levelLost {
		t.lossChanged()
	}
	i.level = g.level
	t.putInode(i)
	return g.looked, nil
}

// gauged is what a look at a file with a row found.
type gauged struct {
	file    *inode // nil: it is gone
	row     unsafeFile
	level   moraine.Level
	over    bool // the row has served
	changed bool // there is something to write
	looked  int
}

// gauge looks at no more than limit extents of a file with a row.
func (v *view) gauge(id moraine.InodeID, limit int) (g gauged, err error) {
	b, ok, err := v.r.Get(v.k.unsafeFile(id))
	if err != nil || !ok {
		return g, err
	}
	if err := g.row.decode(b); err != nil {
		return g, err
	}
	was := g.row
	g.file, err = v.inode(id)
	if moraineKind(err) == moraine.NotFound {
		return gauged{over: true, changed: true}, nil
	}
	if err != nil {
		return g, err
	}
	g.level = g.file.level
	if g.file.content == 0 || g.level == moraine.NVMe {
		g.over, g.changed = true, true
		return g, nil
	}
	if g.row.generation != g.file.generation {
		g.row = unsafeFile{generation: g.file.generation}
	}
	if err := v.gaugeExtents(&g, limit); err != nil {
		return g, err
	}
	g.changed = g.over || g.row != was || g.level != g.file.level
	return g, nil
}

// gaugeExtents looks at limit extents from where all is no longer known to be at nvme, and
// at as many more of a file that is recorded as lost.
func (v *view) gaugeExtents(g *gauged, limit int) error {
	exts, err := v.extentsOf(g.file, g.row.upTo, limit)
	if err != nil {
		return err
	}
	was := g.level
	if was == levelLost {
		g.level = moraine.Memory // unless it is found so again
	}
	g.looked = len(exts)
	behind := false // something before is below nvme
	for _, e := range exts {
		fate, err := v.fateOf(e)
		if err != nil {
			return err
		}
		if behind = behind || fate < moraine.NVMe; !behind {
			g.row.upTo = e.End()
		}
		if fate == levelLost && g.level <= moraine.NVMe { // else an object has the bytes
			g.level, g.row.mark, g.row.found = levelLost, 0, false
			return nil
		}
	}
	switch {
	case was == levelLost && len(exts) == limit:
		return v.gaugeLost(g, exts[limit-1].End(), limit)
	case !behind && len(exts) < limit:
		g.level, g.over = max(g.level, moraine.NVMe), true
	}
	g.row.mark, g.row.found = 0, false
	return nil
}

// fateOf returns the level that the bytes of an extent are at: nvme (or an object,
// which is safer), memory, or levelLost.
func (v *view) fateOf(e moraine.Extent) (moraine.Level, error) {
	if e.Object != 0 {
		return moraine.NVMe, nil
	}
	s, err := v.stripe(e.Stripe)
	if err != nil {
		return 0, err
	}
	if s == nil {
		return 0, &moraine.Error{Op: "raise levels", Ref: e.Stripe.String(), Kind: moraine.Corrupt}
	}
	level, voids, left := moraine.NVMe, false, len(s.Chunks)
	for n := range s.Chunks {
		c := &s.Chunks[n]
		level = min(level, c.Level)
		if void(c) {
			voids = true
			left--
			continue
		}
		d, err := v.lookDevice(c.Device)
		if err != nil {
			return 0, err
		}
		if d == nil || !d.serves() {
			left--
			// Its server will not tell of it any more, unless the device comes back
			// into service: then this is found otherwise again.
			voids = voids || inMemory(c)
		}
	}
	if voids && left < int(s.Scheme.K) {
		return levelLost, nil
	}
	return max(level, moraine.Memory), nil
}

// Raisable returns at most limit of the files behind after that a RaiseLevels now
// would do something for, having looked at as many rows as look, and the last row
// that it looked at: 0 where that was the last there is.
func (m *Machine) Raisable(r Reader, after moraine.InodeID, look, limit int) (ids []moraine.InodeID, last moraine.InodeID, err error) {
	v := m.view(r)
	rows, err := v.unsafeFiles(after, look)
	if err != nil {
		return nil, 0, err
	}
	for _, id := range rows {
		g, err := v.gauge(id, raiseExtents)
		if err != nil {
			return nil, 0, err
		}
		if g.changed {
			ids = append(ids, id)
		}
		if len(ids) == limit {
			return ids, id, nil
		}
	}
	if len(rows) == look {
		last = rows[len(rows)-1]
	}
	return ids, last, nil
}

// unsafeFiles returns at most limit of the files with rows behind after.
func (v *view) unsafeFiles(after moraine.InodeID, limit int) ([]moraine.InodeID, error) {
	var out []moraine.InodeID
	if limit <= 0 {
		return nil, nil
	}
	prefix := v.k.table(tabUnsafe)
	err := v.r.Scan(append(v.k.unsafeFile(after), 0), prefixEnd(prefix), func(key, _ []byte) bool {
		out = append(out, moraine.InodeID(lastU64(key)))
		return len(out) < limit
	})
	return out, err
}

// readLost lists the files that have lost bytes.
func (v *view) readLost(sc scope, op *wire.ListLost) (*wire.MetaResponse, error) {
	if op.GetStep() != nil {
		return v.readStepLost(sc, op)
	}
	reply := &wire.LostReply{}
	limit := listLimit(op.GetLimit())
	for after := moraine.InodeID(op.GetAfter()); ; {
		rows, err := v.unsafeFiles(after, MaxListed)
		if err != nil {
			return nil, err
		}
		for _, id := range rows {
			f, err := v.lostFile(sc, id)
			if err != nil {
				return nil, err
			}
			if f == nil {
				continue
			}
			if len(reply.Files) == limit {
				reply.More = true
				return &wire.MetaResponse{Result: &wire.MetaResponse_Lost{Lost: reply}}, nil
			}
			reply.Files = append(reply.Files, f)
		}
		if len(rows) < MaxListed {
			return &wire.MetaResponse{Result: &wire.MetaResponse_Lost{Lost: reply}}, nil
		}
		after = rows[len(rows)-1]
	}
}

// lostFile describes what a file has lost; nil where that is nothing, or the file is
// not the caller's to see.
func (v *view) lostFile(sc scope, id moraine.InodeID) (*wire.LostFile, error) {
	i, err := v.inode(id)
	if moraineKind(err) == moraine.NotFound {
		return nil, nil
	}
	if err != nil || !i.lost() {
		return nil, err
	}
	path, below, err := v.pathBelow(sc.root, id)
	if err != nil || (!below && sc.root != v.k.top()) {
		return nil, err
	}
	f := &wire.LostFile{Inode: uint64(id), Path: path}
	_, err = v.lostRangesOf(f, i, func(_ *inode, e moraine.Extent) (bool, error) {
		fate, err := v.fateOf(e)
		return fate == levelLost, err
	})
	return f, err
}

// lostRangesOf adds the lost ranges of a file, and returns how many extents it looked at.
func (v *view) lostRangesOf(f *wire.LostFile, i *inode, isLost func(*inode, moraine.Extent) (bool, error)) (looked int, err error) {
	for from := int64(0); ; {
		exts, err := v.extentsOf(i, from, MaxListed)
		if err != nil {
			return looked, err
		}
		looked += len(exts)
		for _, e := range exts {
			from = e.End()
			switch lost, err := isLost(i, e); {
			case err != nil:
				return looked, err
			case !lost:
				continue
			}
			if n := len(f.Ranges); n > 0 && f.Ranges[n-1].Offset+f.Ranges[n-1].Length == uint64(e.Offset) {
				f.Ranges[n-1].Length += uint64(e.Length)
				continue
			}
			if len(f.Ranges) == lostRanges {
				f.More = true
				return looked, nil
			}
			f.Ranges = append(f.Ranges, &wire.ByteRange{Offset: uint64(e.Offset), Length: uint64(e.Length)})
		}
		if len(exts) < MaxListed {
			return looked, nil
		}
	}
}
