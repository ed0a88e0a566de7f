package client

import (
	"context"

	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// Lend returns the n bytes of the file from off on, or those up to its end, without a copy: they are
// where they were fetched ahead. The caller does not change them, and calls release once, before it
// closes the client. release is nil unless the client has fetched all of them ahead, or is doing so:
// then ReadAt reads them. Like ReadAt, Lend sees every write that returned before.
func (h *Handle) Lend(ctx context.Context, off, n int64) (lent [][]byte, release func()) {
	if h.check("client.Lend", off) != nil {
		return nil, nil
	}
	base, extents, n := h.ct.inBase(off, n)
	if n <= 0 {
		return nil, nil
	}
	r := h.readerOf(base, extents)
	r.ahead.plan(ctx, off, n)
	lent, held := r.ahead.lend(ctx, off, off+n)
	release = func() {
		for _, b := range held {
			r.ahead.done(b)
		}
		r.release(false)
	}
	if lent == nil {
		release()
		return nil, nil
	}
	r.c.metrics.ReadaheadHits.Inc()
	return lent, release
}

// lend returns the bytes of [off, end) in blocks, nil unless all are there. The caller calls done for
// each held block in any case.
func (a *readahead) lend(ctx context.Context, off, end int64) (lent [][]byte, held []*aheadBlock) {
	for off < end {
		b := a.hold(off)
		if b == nil {
			return nil, held
		}
		held = append(held, b)
		if !a.await(ctx, b) {
			return nil, held
		}
		part := b.buf.Bytes()[off-b.off : min(end, b.end())-b.off]
		lent, off = append(lent, part), off+int64(len(part))
	}
	return lent, held
}

// inBase returns the base of a range, and how many of its bytes lie within the file; 0: the content
// has bytes there that no commit has, or may have changed.
func (f *fileState) inBase(off, n int64) (*wire.Attr, *stripeio.ExtentMap, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n = min(n, int64(f.base.Size)-off)
	if f.doubted || n <= 0 || f.size() > int64(f.base.Size) || len(f.spans.within(off, off+n)) > 0 {
		return nil, nil, 0
	}
	return f.base, f.extents, n
}
