package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxCloneRanges is the largest number of ranges in one Clone.
	maxCloneRanges = 512
	// maxCloneTouched bounds the tables that one Clone shares plus the extents that it writes.
	maxCloneTouched = 512
)

// shared is one piece of a clone: a whole table of the source, or extents cut from one, at their
// place in the target file.
type shared struct {
	ref  record.Ref       // its table is 0 for a cut one
	exts []moraine.Extent // for a cut one
}

// cloneWork is a Clone in progress.
type cloneWork struct {
	op       *wire.Clone
	i        *record.Inode
	base     int64 // where the ranges begin in the file
	end      int64 // where they end in the file
	pieces   []shared
	touched  int
	level    moraine.Level
	degraded uint64
}

// Clone lays ranges of other files, or of the same file, over a file. It shares whole tables, which
// seals them. If a range cuts a table, the part in the range gets its own table. Stripes and
// objects count every table that refers to them, so that no bytes are copied.
func Clone(t *kvtx.Tx, op *wire.Clone) (*wire.MetaResponse, error) {
	i, err := contentFile(t, "clone", op.GetInode())
	if err != nil {
		return nil, err
	}
	mode := op.GetMode()
	switch {
	case mode < wire.CommitMode_COMMIT_MODE_OVERLAY || mode > wire.CommitMode_COMMIT_MODE_APPEND:
		return nil, kvtx.Fail(moraine.InvalidArgument, "clone", i.Id.String(), "mode %d is unknown", mode)
	case op.GetOffset() != 0 && (mode != wire.CommitMode_COMMIT_MODE_OVERLAY || op.GetOffset() > tree.MaxFileSize):
		return nil, kvtx.Fail(moraine.InvalidArgument, "clone", i.Id.String(), "the offset %d is invalid in mode %d", op.GetOffset(), mode)
	case len(op.GetRanges()) > maxCloneRanges:
		return nil, kvtx.Fail(moraine.TooLarge, "clone", i.Id.String(), "the request has %d ranges, %d at most", len(op.GetRanges()), maxCloneRanges)
	case op.GetExpectGeneration() != 0 && moraine.Generation(op.GetExpectGeneration()) != i.Generation:
		return nil, kvtx.Fail(moraine.Conflict, "clone", i.Id.String(), "the file has generation %d, but the request expects %d", i.Generation, op.GetExpectGeneration())
	}
	w := &cloneWork{op: op, i: i, level: moraine.NVMe}
	switch mode {
	case wire.CommitMode_COMMIT_MODE_APPEND:
		w.base = i.Size
	case wire.CommitMode_COMMIT_MODE_OVERLAY:
		w.base = int64(op.GetOffset())
	}
	w.end = w.base
	for _, r := range op.GetRanges() {
		if err := w.take(t, r); err != nil {
			return nil, err
		}
	}
	if err := layClone(t, w); err != nil {
		return nil, err
	}
	if l := op.GetLink(); l != nil {
		if err := linkCommitted(t, i, l); err != nil {
			return nil, err
		}
	}
	tree.PutInode(t, i)
	if err := names.FlushOnCommit(t, i); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Commit{Commit: &wire.CommitReply{
		Attr: i.Attr(), Degraded: uint32(min(w.degraded, 1<<32-1)),
	}}}, nil
}

// take finds the pieces of one range.
func (w *cloneWork) take(t *kvtx.Tx, r *wire.CloneRange) error {
	src, err := contentFile(t, "clone", r.GetInode())
	if err != nil {
		return err
	}
	name := src.Id.String()
	if src.Id == w.i.Id && w.op.GetMode() == wire.CommitMode_COMMIT_MODE_OVERLAY {
		// The old content of the range gives up its stripes before the new content counts them.
		return kvtx.Fail(moraine.InvalidArgument, "clone", name, "a range of a file cannot lie over the file itself: copy it instead")
	}
	if src.Tenant != w.i.Tenant {
		return kvtx.Fail(moraine.CrossTenant, "clone", name, "the source belongs to another tenant: copy it instead")
	}
	if g := moraine.Generation(r.GetGeneration()); g != 0 && g != src.Generation {
		return kvtx.Fail(moraine.Stale, "clone", name, "the file has generation %d, but the request expects %d", src.Generation, g)
	}
	size := uint64(src.Size)
	if r.GetOffset() > size || r.GetLength() > size-r.GetOffset() {
		return kvtx.Fail(moraine.InvalidArgument, "clone", name, "the source has %d bytes, and the range ends beyond them", size)
	}
	from, length := int64(r.GetOffset()), int64(r.GetLength())
	if length == 0 {
		length = src.Size - from
	}
	if w.end+length > tree.MaxFileSize {
		return kvtx.Fail(moraine.TooLarge, "clone", w.i.Id.String(), "the file would be larger than %d bytes", int64(tree.MaxFileSize))
	}
	if err := tree.RaiseStepOf(t, src); err != nil {
		return err
	}
	if src.Stored > 0 {
		level, err := layout.LevelBeside(&t.View, src)
		if err != nil {
			return err
		}
		w.level = min(w.level, level)
		w.degraded += src.Degraded
	}
	err = layout.RefsFrom(&t.View, src.Content, from, func(f record.Ref) (bool, error) {
		if f.Base >= from+length {
			return false, nil
		}
		return true, w.takeTable(t, f, from, from+length)
	})
	w.end += length
	return err
}

// takeTable finds the piece that one table of a source has in [lo, hi), for the range's place in
// the file.
func (w *cloneWork) takeTable(t *kvtx.Tx, f record.Ref, lo, hi int64) error {
	move := w.end - lo
	if f.Base >= lo && f.End <= hi {
		w.pieces = append(w.pieces, shared{ref: record.Ref{Table: f.Table, Base: f.Base + move, End: f.End + move}})
		w.touched++
	} else {
		all, err := layout.ExtsFrom(&t.View, f, f.Base, layout.NoLimit)
		if err != nil {
			return err
		}
		exts := layout.Cut(all, lo, hi)
		for n := range exts {
			exts[n].Offset += move
		}
		if len(exts) > 0 {
			w.pieces = append(w.pieces, shared{exts: exts})
		}
		w.touched += len(exts)
	}
	if w.touched > maxCloneTouched {
		return kvtx.Fail(moraine.TooLarge, "clone", w.i.Id.String(), "the ranges have more than %d tables and extents: clone smaller ranges", maxCloneTouched)
	}
	return nil
}

// layClone makes the pieces the content of the file.
func layClone(t *kvtx.Tx, w *cloneWork) error {
	i := w.i
	old, size := uint64(0), i.Size
	if w.op.GetMode() == wire.CommitMode_COMMIT_MODE_REPLACE {
		old = i.DropContent()
	} else if w.op.GetMode() == wire.CommitMode_COMMIT_MODE_OVERLAY && w.base < w.end {
		if err := layout.Clear(t, i, w.base, w.end); err != nil {
			return err
		}
	}
	if i.Stored == 0 {
		i.Level, i.Degraded = moraine.NVMe, 0
	}
	for _, p := range w.pieces {
		if p.ref.Table == 0 {
			// Each cut gets its own table, as in the source: within one table no byte of a stripe
			// is referenced twice.
			if err := layout.AddTable(t, i, p.exts); err != nil {
				return err
			}
			continue
		}
		if err := shareTable(t, i, p.ref); err != nil {
			return err
		}
	}
	// Discard this last: the file's former content may be among the sources.
	if err := layout.Discard(t, old); err != nil {
		return err
	}
	if i.Size = w.end; w.op.GetMode() == wire.CommitMode_COMMIT_MODE_OVERLAY {
		i.Size = max(size, w.end)
	}
	i.Mtime, i.Ctime = t.Now, t.Now
	if w.op.GetMtime() != 0 {
		i.Mtime = w.op.GetMtime()
	}
	if len(w.pieces) > 0 {
		level, err := layout.LevelBeside(&t.View, i)
		if err != nil {
			return err
		}
		i.Level = min(level, w.level)
		i.Degraded += w.degraded
	}
	watchLevel(t, i)
	return names.RaiseGeneration(t, i)
}

// shareTable adds a reference from a file to a table that already has one. The table is sealed from
// then on.
func shareTable(t *kvtx.Tx, i *record.Inode, r record.Ref) error {
	h, err := layout.TableHead(&t.View, r.Table)
	if err != nil {
		return err
	}
	h.Refs++
	h.Sealed = true
	t.Put(t.K.ExtTable(r.Table), h.Encode())
	if i.Content == 0 {
		i.Content = t.Next(record.CContent)
	}
	t.Put(t.K.Ref(i.Content, r.End), r.Encode())
	i.Refs++
	i.Count(h)
	i.LastEnd = max(i.LastEnd, r.End)
	return nil
}
