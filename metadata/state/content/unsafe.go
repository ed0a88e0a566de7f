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

// A file below level nvme has a row with the offset up to which its stripes are
// known to be at nvme. The leader scans the rows. When the offset reaches the
// end, the file is at nvme and its row is deleted. The leader finds losses
// behind the first extent below nvme separately (lostlook.go). A row may also
// belong to a file that is gone. Or the file is in an object while some of its
// chunks are still in memory. A file below nvme always has a row.

const (
	// MaxRaised is the largest number of files that one command raises. It inspects at most
	// raiseExtents extents of each file, and raiseBudget of all.
	MaxRaised    = 64
	raiseExtents = 200
	raiseBudget  = 600
	// lostRanges is the largest number of lost ranges of a file in an answer.
	lostRanges = 64
)

// watchLevel adds a row for a file whose level is below nvme. The caller writes the file.
func watchLevel(t *kvtx.Tx, i *record.Inode) {
	if i.Content == 0 || i.Level >= moraine.NVMe {
		return
	}
	watch(t, i)
}

// watch adds a row for a file, whatever its level.
func watch(t *kvtx.Tx, i *record.Inode) { t.Put(t.K.UnsafeFile(i.Id), record.UnsafeFile{}.Encode()) }

// RaiseLevels inspects files with rows within its budget.
func RaiseLevels(t *kvtx.Tx, op *statepb.RaiseLevels) (*wire.MetaResponse, error) {
	if n := len(op.GetInodes()) + len(op.GetLost()); n > MaxRaised {
		return nil, kvtx.Fail(moraine.TooLarge, "raise levels", "", "%d files, %d at most", n, MaxRaised)
	}
	left := raiseBudget
	for _, id := range op.GetInodes() {
		looked, err := raiseLevel(t, moraine.InodeID(id), min(left, raiseExtents))
		if err != nil {
			return nil, err
		}
		if left -= looked; left <= 0 {
			break
		}
	}
	for _, at := range op.GetLost() {
		if err := loseLevel(t, FilePlace{moraine.InodeID(at.GetInode()), int64(at.GetOffset())}); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// raiseLevel gives a file the level of its stripes, if an inspection of limit extents can show it,
// and records its progress.
func raiseLevel(t *kvtx.Tx, id moraine.InodeID, limit int) (looked int, err error) {
	g, err := gauge(&t.View, id, limit)
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

// gauged is the result of inspecting a file with a row.
type gauged struct {
	file    *record.Inode // nil if the file is gone
	row     record.UnsafeFile
	level   moraine.Level
	over    bool // the row is no longer needed
	changed bool // the file or row must be written
	looked  int
}

// gauge inspects at most limit extents of a file with a row.
func gauge(v *kvtx.View, id moraine.InodeID, limit int) (g gauged, err error) {
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
	if err := gaugeExtents(v, &g, limit); err != nil {
		return g, err
	}
	g.changed = g.over || g.row != was || g.level != g.file.Level
	return g, nil
}

// gaugeExtents inspects limit extents after the part that is known to be at nvme, and as many more
// of a file recorded as lost.
func gaugeExtents(v *kvtx.View, g *gauged, limit int) error {
	exts, err := layout.ExtentsOf(v, g.file, g.row.UpTo, limit)
	if err != nil {
		return err
	}
	was := g.level
	if was == record.LevelLost {
		g.level = moraine.Memory // until the inspection finds it lost again
	}
	g.looked = len(exts)
	behind := false // an earlier extent is below nvme
	for _, e := range exts {
		fate, err := FateOf(v, e)
		if err != nil {
			return err
		}
		if behind = behind || fate < moraine.NVMe; !behind {
			g.row.UpTo = e.End()
		}
		if fate == record.LevelLost && g.level <= moraine.NVMe { // otherwise an object has the bytes
			g.level, g.row.Mark, g.row.Found = record.LevelLost, 0, false
			return nil
		}
		if behind && was != record.LevelLost {
			break // the search for losses looks at what follows
		}
	}
	switch {
	case was == record.LevelLost && len(exts) == limit:
		return gaugeLost(v, g, exts[limit-1].End(), limit)
	case !behind && len(exts) < limit:
		g.level, g.over = max(g.level, moraine.NVMe), true
	}
	g.row.Mark, g.row.Found = 0, false
	return nil
}

// FateOf returns the level of an extent's bytes: nvme (also in the metadata, and for an object, which
// is safer), memory, or LevelLost.
func FateOf(v *kvtx.View, e moraine.Extent) (moraine.Level, error) {
	if e.Stripe == 0 {
		return moraine.NVMe, nil
	}
	s, err := fleet.Stripe(v, e.Stripe)
	if err != nil {
		return 0, err
	}
	if s == nil {
		return 0, kvtx.Corrupt("raise levels", e.Stripe.String(), "an extent refers to the stripe, which has no record")
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
			// Its server no longer reports them unless the device returns to service. An inspection
			// then finds the bytes again.
			voids = voids || fleet.IsInMemory(c)
		}
	}
	if voids && left < int(s.Scheme.K) {
		return record.LevelLost, nil
	}
	return max(level, moraine.Memory), nil
}

// Raisable returns at most limit files after one for which RaiseLevels would change something. It
// inspects at most look rows. It also returns the last row inspected; 0 if that was the last of
// all.
func Raisable(v *kvtx.View, after moraine.InodeID, look, limit int) (ids []moraine.InodeID, last moraine.InodeID, err error) {
	rows, err := UnsafeFiles(v, after, look)
	if err != nil {
		return nil, 0, err
	}
	for _, id := range rows {
		g, err := gauge(v, id, raiseExtents)
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

// UnsafeFiles returns at most limit files with rows, after one.
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

// LostFile describes a file's lost bytes; nil if there are none, or the caller may not see the
// file.
func LostFile(v *kvtx.View, sc kvtx.Scope, id moraine.InodeID) (*wire.LostFile, error) {
	i, err := tree.ReadInode(v, id)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return nil, nil
	}
	if err != nil || !i.Lost() || i.Orphan() { // nobody can write a removed file again
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

// LostRangesOf adds the lost ranges of a file and returns the number of extents inspected.
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
