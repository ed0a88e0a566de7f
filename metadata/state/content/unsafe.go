package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
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

// WatchLevel gives a file a row whose level is below nvme. The caller writes the file.
func WatchLevel(t *kvtx.Tx, i *record.Inode) error {
	if i.Content == 0 || i.Level >= moraine.NVMe {
		return nil
	}
	return Watch(t, i)
}

// Watch gives a file a row, whatever its level is.
func Watch(t *kvtx.Tx, i *record.Inode) error {
	if ok, err := t.Speaks(kvtx.LevelMemory); !ok || err != nil {
		return err
	}
	t.Put(t.K.UnsafeFile(i.Id), record.UnsafeFile{}.Encode())
	return nil
}

// RaiseLevels looks at files with rows, as far as its budget goes.
func RaiseLevels(t *kvtx.Tx, op *statepb.RaiseLevels) (*wire.MetaResponse, error) {
	if n := len(op.GetInodes()) + len(op.GetLost()); n > MaxRaised {
		return nil, kvtx.Fail(moraine.TooLarge, "raise levels", "", "%d files, %d at most", n, MaxRaised)
	}
	left := raiseBudget
	for _, id := range op.GetInodes() {
		looked, err := RaiseLevel(t, moraine.InodeID(id), min(left, raiseExtents))
		if err != nil {
			return nil, err
		}
		if left -= looked; left <= 0 {
			break
		}
	}
	for _, at := range op.GetLost() {
		if err := LoseLevel(t, FilePlace{moraine.InodeID(at.GetInode()), int64(at.GetOffset())}); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// RaiseLevel gives a file the level that its stripes have, if that can be told by
// looking at limit extents, and notes how far it came.
func RaiseLevel(t *kvtx.Tx, id moraine.InodeID, limit int) (looked int, err error) {
	g, err := Gauge(&t.View, id, limit)
	if err != nil || !g.changed {
		return g.looked, err
	}
	if g.over {
		t.Del(t.K.UnsafeFile(id))
	} else {
		t.Put(t.K.UnsafeFile(id), g.row.Encode())
	}
	if g.file == nil || g.level == g.file.Level {
		return g.looked, nil
	}
	i, err := tree.Inode(t, id)
	if err != nil {
		return g.looked, err
	}
	if i.Level == record.LevelLost || g.level == record.LevelLost {
		t.LossChanged()
	}
	i.Level = g.level
	tree.PutInode(t, i)
	return g.looked, nil
}

// gauged is what a look at a file with a row found.
type gauged struct {
	file    *record.Inode // nil: it is gone
	row     record.UnsafeFile
	level   moraine.Level
	over    bool // the row has served
	changed bool // there is something to write
	looked  int
}

// Gauge looks at no more than limit extents of a file with a row.
func Gauge(v *kvtx.View, id moraine.InodeID, limit int) (g gauged, err error) {
	b, ok, err := v.R.Get(v.K.UnsafeFile(id))
	if err != nil || !ok {
		return g, err
	}
	if err := g.row.Decode(b); err != nil {
		return g, err
	}
	was := g.row
	g.file, err = tree.ReadInode(v, id)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return gauged{over: true, changed: true}, nil
	}
	if err != nil {
		return g, err
	}
	g.level = g.file.Level
	if g.file.Content == 0 || g.level == moraine.NVMe {
		g.over, g.changed = true, true
		return g, nil
	}
	if g.row.Generation != g.file.Generation {
		g.row = record.UnsafeFile{Generation: g.file.Generation}
	}
	if err := GaugeExtents(v, &g, limit); err != nil {
		return g, err
	}
	g.changed = g.over || g.row != was || g.level != g.file.Level
	return g, nil
}

// GaugeExtents looks at limit extents from where all is no longer known to be at nvme, and
// at as many more of a file that is recorded as lost.
func GaugeExtents(v *kvtx.View, g *gauged, limit int) error {
	exts, err := layout.ExtentsOf(v, g.file, g.row.UpTo, limit)
	if err != nil {
		return err
	}
	was := g.level
	if was == record.LevelLost {
		g.level = moraine.Memory // unless it is found so again
	}
	g.looked = len(exts)
	behind := false // something before is below nvme
	for _, e := range exts {
		fate, err := FateOf(v, e)
		if err != nil {
			return err
		}
		if behind = behind || fate < moraine.NVMe; !behind {
			g.row.UpTo = e.End()
		}
		if fate == record.LevelLost && g.level <= moraine.NVMe { // else an object has the bytes
			g.level, g.row.Mark, g.row.Found = record.LevelLost, 0, false
			return nil
		}
	}
	switch {
	case was == record.LevelLost && len(exts) == limit:
		return GaugeLost(v, g, exts[limit-1].End(), limit)
	case !behind && len(exts) < limit:
		g.level, g.over = max(g.level, moraine.NVMe), true
	}
	g.row.Mark, g.row.Found = 0, false
	return nil
}

// FateOf returns the level that the bytes of an extent are at: nvme (or an object,
// which is safer), memory, or levelLost.
func FateOf(v *kvtx.View, e moraine.Extent) (moraine.Level, error) {
	if e.Object != 0 {
		return moraine.NVMe, nil
	}
	s, err := fleet.Stripe(v, e.Stripe)
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
		if fleet.IsVoid(c) {
			voids = true
			left--
			continue
		}
		d, err := fleet.LookDevice(v, c.Device)
		if err != nil {
			return 0, err
		}
		if d == nil || !d.Serves() {
			left--
			// Its server will not tell of it any more, unless the device comes back
			// into service: then this is found otherwise again.
			voids = voids || fleet.IsInMemory(c)
		}
	}
	if voids && left < int(s.Scheme.K) {
		return record.LevelLost, nil
	}
	return max(level, moraine.Memory), nil
}

// Raisable returns at most limit of the files behind after that a RaiseLevels now
// would do something for, having looked at as many rows as look, and the last row
// that it looked at: 0 where that was the last there is.
func Raisable(r *kvtx.View, after moraine.InodeID, look, limit int) (ids []moraine.InodeID, last moraine.InodeID, err error) {
	v := r
	rows, err := UnsafeFiles(v, after, look)
	if err != nil {
		return nil, 0, err
	}
	for _, id := range rows {
		g, err := Gauge(v, id, raiseExtents)
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

// UnsafeFiles returns at most limit of the files with rows behind after.
func UnsafeFiles(v *kvtx.View, after moraine.InodeID, limit int) ([]moraine.InodeID, error) {
	var out []moraine.InodeID
	if limit <= 0 {
		return nil, nil
	}
	prefix := v.K.Table(record.TabUnsafe)
	err := v.R.Scan(append(v.K.UnsafeFile(after), 0), kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		out = append(out, moraine.InodeID(record.LastU64(key)))
		return len(out) < limit
	})
	return out, err
}

// LostFile describes what a file has lost; nil where that is nothing, or the file is
// not the caller's to see.
func LostFile(v *kvtx.View, sc kvtx.Scope, id moraine.InodeID) (*wire.LostFile, error) {
	i, err := tree.ReadInode(v, id)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return nil, nil
	}
	if err != nil || !i.Lost() {
		return nil, err
	}
	path, below, err := tree.PathUnder(v, sc.Root, id)
	if err != nil || (!below && sc.Root != v.K.Top()) {
		return nil, err
	}
	f := &wire.LostFile{Inode: uint64(id), Path: path}
	_, err = LostRangesOf(v, f, i, func(_ *record.Inode, e moraine.Extent) (bool, error) {
		fate, err := FateOf(v, e)
		return fate == record.LevelLost, err
	})
	return f, err
}

// LostRangesOf adds the lost ranges of a file, and returns how many extents it looked at.
func LostRangesOf(v *kvtx.View, f *wire.LostFile, i *record.Inode, isLost func(*record.Inode, moraine.Extent) (bool, error)) (looked int, err error) {
	for from := int64(0); ; {
		exts, err := layout.ExtentsOf(v, i, from, tree.MaxListed)
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
		if len(exts) < tree.MaxListed {
			return looked, nil
		}
	}
}
