package client

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// view is where the bytes of a range of a content are at one moment.
type view struct {
	off  int64
	p    []byte // shortened to what lies within the file
	base *wire.Attr
	ext  *stripeio.ExtentMap
	put  []spanRead // on chunkservers, not committed
	gaps [][2]int64 // ranges to read from the base, by offset
}

// spanRead is a range whose bytes are on chunkservers in a batch.
type spanRead struct {
	b        *batch
	off, end int64
	found    []stripeio.Located
}

// look copies the bytes of [off, off+len(p)) that are in memory to p, and returns where the
// others are.
func (f *fileState) look(p []byte, off int64) *view {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(int64(len(p)), max(0, f.size()-off))
	v := &view{off: off, p: p[:n], base: f.base, ext: f.extents}
	at, end := off, off+n
	for _, s := range f.spans.within(off, end) {
		v.gap(at, s.off)
		at = s.end
		if s.mem != nil {
			copy(v.p[s.off-off:], s.mem)
			continue
		}
		v.put = append(v.put, spanRead{b: s.b, off: s.off, end: s.end, found: s.b.locate(s.at, s.end-s.off, s.off)})
	}
	v.gap(at, end)
	return v
}

// gap records that [off, end) is as in the base: zeros past its end.
func (v *view) gap(off, end int64) {
	if zeros := max(off, int64(v.base.Size)); zeros < end {
		clear(v.p[zeros-v.off : end-v.off])
		end = zeros
	}
	if off < end {
		v.gaps = append(v.gaps, [2]int64{off, end})
	}
}

// read fills p up to the end of the file and returns the number of bytes. If the content
// changes meanwhile, it looks again.
func (h *Handle) read(ctx context.Context, p []byte, off int64) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, h.ct.c.cfg.Patience)
	defer cancel()
	for try := 0; ; try++ {
		if err := h.ct.settleDoubt(ctx); err != nil {
			return 0, err
		}
		v := h.ct.look(p, off)
		err := h.readView(ctx, v, try > 1)
		if err == nil {
			return len(v.p), nil
		}
		if ctx.Err() != nil {
			return 0, retry.ContextErrorAfter(ctx, "read", err)
		}
		switch {
		case retry.IsKind(err, moraine.Stale):
			if err := h.ct.refresh(ctx); err != nil {
				return 0, err
			}
		case h.ct.moved(v):
		case retry.IsTransient(err):
			if !retry.Pause(ctx, h.ct.c.clock, try) {
				return 0, retry.ContextErrorAfter(ctx, "read", err)
			}
		default:
			return 0, err
		}
	}
}

// settleDoubt refreshes a base that may be old.
func (f *fileState) settleDoubt(ctx context.Context) error {
	f.mu.Lock()
	doubted := f.doubted
	f.mu.Unlock()
	if !doubted {
		return nil
	}
	return f.refresh(ctx)
}

// moved reports whether a batch from which the view reads has changed state: its bytes were
// committed or discarded.
func (f *fileState) moved(v *view) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range v.put {
		if s.b.state != batchPut {
			return true
		}
	}
	return false
}

// readView reads in parallel what is not in memory.
func (h *Handle) readView(ctx context.Context, v *view, trust bool) error {
	if len(v.put) == 0 && len(v.gaps) == 0 {
		return nil
	}
	var group errgroup.Group
	group.SetLimit(stripeio.MaxParallelStripes)
	for _, s := range v.put {
		group.Go(func() error {
			_, err := h.ct.c.io.ReadLocated(ctx, s.found, v.p[s.off-v.off:s.end-v.off], s.off, trust)
			return err
		})
	}
	if len(v.gaps) > 0 {
		r := h.readerOf(v.base, v.ext)
		defer r.release(false)
		for _, g := range v.gaps {
			dst := v.p[g[0]-v.off : g[1]-v.off]
			if len(v.gaps) == 1 && len(v.put) == 0 {
				return r.ahead.read(ctx, dst, g[0])
			}
			group.Go(func() error { return r.ahead.read(ctx, dst, g[0]) })
		}
	}
	return group.Wait()
}

// baseReader is a handle's reader of one generation, with its readahead.
type baseReader struct {
	*Reader
	mu    sync.Mutex
	users int
	old   bool // the handle has a newer reader, or is closed
}

// readerOf returns the handle's reader of a base. The caller calls release.
func (h *Handle) readerOf(base *wire.Attr, ext *stripeio.ExtentMap) *baseReader {
	h.mu.Lock()
	r, old := h.reader, (*baseReader)(nil)
	if r == nil || r.attr.Generation != base.Generation {
		r, old = &baseReader{Reader: newReader(h.ct.c, h.ct.ref, base, ext)}, r
		h.reader = r
	}
	r.mu.Lock()
	r.users++
	r.mu.Unlock()
	h.mu.Unlock()
	if old != nil {
		old.release(true)
	}
	return r
}

// release ends one use; with last it ends the handle's own use. The reader closes once all uses
// have ended.
func (r *baseReader) release(last bool) {
	r.mu.Lock()
	if last {
		r.old = true
	} else {
		r.users--
	}
	end := r.old && r.users == 0
	r.mu.Unlock()
	if end {
		_ = r.Close()
	}
}
