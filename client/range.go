package client

import (
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// Grow makes the file at least size bytes long, by a hole at its end, visible to all when it
// returns. It never cuts what another client appended meanwhile. It reserves no space.
func (h *Handle) Grow(ctx context.Context, size int64) error {
	if err := h.check("client.Grow", size); err != nil {
		return err
	}
	return retry.Wrap("client.Grow", h.ct.ref, h.ct.changeRange(ctx, 0, 0, size))
}

// PunchHole makes n bytes from off on a hole, visible to all when it returns. Bytes that were
// written before become zeros, committed or not. size is as for Grow; 0 leaves the length as it is.
// A range of more than 256 extent tables takes several steps, which others may see.
func (h *Handle) PunchHole(ctx context.Context, off, n, size int64) error {
	if err := h.check("client.PunchHole", min(off, n, size)); err != nil {
		return err
	}
	if off >= moraine.MaxFileSize {
		off, n = 0, 0 // nothing is there
	}
	return retry.Wrap("client.PunchHole", h.ct.ref, h.ct.changeRange(ctx, off, off+min(n, moraine.MaxFileSize-off), size))
}

// changeRange makes [from, to), which may be empty, a hole, and the file at least size bytes long.
func (ct *content) changeRange(ctx context.Context, from, to, size int64) error {
	if max(to, size) > moraine.MaxFileSize {
		return &moraine.Error{Kind: moraine.TooLarge}
	}
	if err := ct.mayGrow(ctx, size); err != nil {
		return err
	}
	if err := ct.gate.Lock(ctx); err != nil {
		return err
	}
	defer ct.passOn()
	defer ct.gate.Unlock()
	if from < to {
		if err := ct.settle(ctx); err != nil {
			return err
		}
	}
	return ct.publishing(ctx, func() (*wire.Attr, error) { return ct.punch(ctx, from, to, size) })
}

// settle returns when all earlier writes are committed, or have failed. The caller holds the gate.
func (ct *content) settle(ctx context.Context) error {
	if err := ct.sendAll(ctx); err != nil {
		return err
	}
	return ct.awaitCommitted(ctx)
}

// publishing runs a change of the committed content, and takes the attributes after it.
func (ct *content) publishing(ctx context.Context, do func() (*wire.Attr, error)) error {
	if err := ct.publish.Lock(ctx); err != nil {
		return err
	}
	defer ct.publish.Unlock()
	attr, err := do()
	ct.mu.Lock()
	defer ct.mu.Unlock()
	if err != nil {
		ct.doubted = true // it may still have taken effect
		return err
	}
	ct.sawBase(attr)
	return nil
}

// punch sends the change. It divides a range that is too large for one log entry.
func (ct *content) punch(ctx context.Context, from, to, size int64) (*wire.Attr, error) {
	op := &wire.Commit{Inode: uint64(ct.sender.Inode), Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Size: uint64(size)}
	if from < to {
		op.PunchFrom, op.PunchTo = uint64(from), uint64(to)
	}
	resp, err := ct.c.change(ctx, ct.sender.Inode, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
	if retry.IsKind(err, moraine.TooLarge) && to-from > 1 {
		middle := from + (to-from)/2
		if _, err := ct.punch(ctx, from, middle, 0); err != nil {
			return nil, err
		}
		return ct.punch(ctx, middle, to, size)
	}
	if err == nil && resp.GetCommit().GetAttr() == nil {
		err = retry.BadReply("commit")
	}
	return resp.GetCommit().GetAttr(), err
}

// CloneRange makes n bytes of the file from off on the same as those of another from from on. They
// share the bytes; no byte moves. It flushes src first. CrossTenant, TooLarge, Stale and
// InvalidArgument (a range that ends past src's end, or src is the same file) mean that the caller
// must copy the bytes instead. Other clients see all of it or nothing.
func (h *Handle) CloneRange(ctx context.Context, src *Handle, from, off, n int64) error {
	if err := h.check("client.CloneRange", min(from, off, n)); err != nil {
		return err
	}
	if h.ct == src.ct || n == 0 {
		return &moraine.Error{Op: "client.CloneRange", Ref: h.ct.ref, Kind: moraine.InvalidArgument}
	}
	if err := src.readable(ctx); err != nil { // before the gate of h: src may be cloning from h
		return retry.Wrap("client.CloneRange", src.ct.ref, err)
	}
	return retry.Wrap("client.CloneRange", h.ct.ref, h.ct.cloneRange(ctx, src.Inode(), from, off, n))
}

// readable flushes what was written, for another file. It fails with an error that the handle has
// not reported, and leaves it to be reported.
func (h *Handle) readable(ctx context.Context) error {
	err := h.ct.flush(ctx)
	h.ct.mu.Lock()
	defer h.ct.mu.Unlock()
	if h.seen != h.ct.faults.count {
		return h.ct.faults.last
	}
	return err
}

func (ct *content) cloneRange(ctx context.Context, src moraine.InodeID, from, off, n int64) error {
	if err := ct.mayGrow(ctx, off+n); err != nil {
		return err
	}
	if err := ct.gate.Lock(ctx); err != nil {
		return err
	}
	defer ct.passOn()
	defer ct.gate.Unlock()
	if err := ct.settle(ctx); err != nil {
		return err
	}
	return ct.publishing(ctx, func() (*wire.Attr, error) {
		op := &wire.Clone{Inode: uint64(ct.sender.Inode), Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Offset: uint64(off),
			Ranges: []*wire.CloneRange{{Inode: uint64(src), Offset: uint64(from), Length: uint64(n)}}}
		resp, err := ct.c.change(ctx, ct.sender.Inode, &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: op}})
		if err == nil && resp.GetCommit().GetAttr() == nil {
			err = retry.BadReply("clone")
		}
		return resp.GetCommit().GetAttr(), err
	})
}

// SeekData returns the first offset from off on that is no hole. ok is false if there is none. Bytes
// that this client wrote count, committed or not.
func (h *Handle) SeekData(ctx context.Context, off int64) (at int64, ok bool, err error) {
	return h.seek(ctx, "client.SeekData", off, false)
}

// SeekHole returns the first offset from off on that is a hole; the end of the file counts as one. ok
// is false if off is not before the end.
func (h *Handle) SeekHole(ctx context.Context, off int64) (at int64, ok bool, err error) {
	return h.seek(ctx, "client.SeekHole", off, true)
}

func (h *Handle) seek(ctx context.Context, op string, off int64, hole bool) (at int64, ok bool, err error) {
	if err := h.check(op, off); err != nil {
		return 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.ct.c.cfg.Patience)
	defer cancel()
	for {
		if err := h.ct.settleDoubt(ctx); err != nil {
			return 0, false, retry.Wrap(op, h.ct.ref, err)
		}
		at, ok, err := h.ct.seek(ctx, off, hole)
		if !retry.IsKind(err, moraine.Stale) {
			return at, ok, retry.Wrap(op, h.ct.ref, err)
		}
		if err := h.ct.refresh(ctx); err != nil {
			return 0, false, retry.Wrap(op, h.ct.ref, err)
		}
	}
}

// firstLook is how many bytes of a file a seek examines at first; then ever more.
const firstLook = 64 << 20

// seek looks at one version of the file.
func (f *fileState) seek(ctx context.Context, off int64, hole bool) (int64, bool, error) {
	f.mu.Lock()
	size, base, ext, written := f.size(), int64(f.base.Size), f.extents, slices.Clone(f.spans)
	f.mu.Unlock()
	at := off
	for step := int64(firstLook); at < size; step *= 2 {
		end := min(size, at+min(step, size-at))
		data, err := dataIn(ctx, ext, written, at, end, base)
		if err != nil {
			return 0, false, err
		}
		for _, d := range data {
			switch {
			case !hole:
				return d[0], true, nil
			case d[0] > at:
				return at, true, nil
			}
			at = d[1]
		}
		if hole && at < end {
			return at, true, nil
		}
		at = end
	}
	return size, hole && off < size, nil
}

// dataIn returns the ranges in [off, end) that are no holes, in order and not overlapping. The
// committed version has base bytes.
func dataIn(ctx context.Context, ext *stripeio.ExtentMap, written spans, off, end, base int64) ([][2]int64, error) {
	var all [][2]int64
	if off < min(end, base) {
		found, err := ext.Find(ctx, off, min(end, base))
		if err != nil {
			return nil, err
		}
		for _, e := range found {
			all = append(all, [2]int64{max(e.Offset, off), min(e.End(), end, base)})
		}
	}
	for _, s := range written.within(off, end) {
		all = append(all, [2]int64{s.off, s.end})
	}
	slices.SortFunc(all, func(a, b [2]int64) int { return int(min(max(a[0]-b[0], -1), 1)) })
	var out [][2]int64
	for _, r := range all {
		if n := len(out); n > 0 && r[0] <= out[n-1][1] {
			out[n-1][1] = max(out[n-1][1], r[1])
			continue
		}
		out = append(out, r)
	}
	return out, nil
}
