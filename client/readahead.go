package client

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/bufpool"
)

// readahead fetches what sequential readers of a file will read next: a window of blocks that grows
// while the pattern continues. It follows several readers at once, and one that looks elsewhere in
// between (see place). Blocks lie at multiples of their size, which is that of a full
// stripe of the usual scheme. The reason is the cost of lost chunks. A stripe read whole costs
// as many chunks as it has data, while each lost chunk read alone costs as much as the whole. If
// no memory is free, a readahead fetches nothing: it never waits. Where readers read a record here and a record there, the window ends where the
// longest of the last records would. Safe for concurrent use.
//
// Readers get a copy of the bytes fetched ahead. A wide read already reads the stripes of its many
// blocks in parallel, so it goes directly into the reader's memory. Only its beginning is fetched
// ahead, so that the servers have work between two wide reads.
type readahead struct {
	r     *Reader
	block int64
	most  int   // blocks in the window
	until int64 // end of what may be fetched ahead

	running sync.WaitGroup
	mu      sync.Mutex
	places  places
	runs    runs
	blocks  map[int64]*aheadBlock
	closed  bool
}

// aheadBlock is a block being fetched, or fetched. Its memory is released once it is dropped
// and has no users.
type aheadBlock struct {
	off    int64
	buf    *bufpool.Buffer
	cancel context.CancelFunc
	ready  chan struct{} // closed when err is set and the bytes are there
	err    error
	owner  *place // it was fetched for this one; guarded by readahead.mu, like what follows
	users  int
	gone   bool
}

// stripeChunks is the number of data chunks of a full stripe of the usual scheme.
const stripeChunks = 4

// A read of at least wideBlocks blocks is wide; aheadOfWide is how many blocks are fetched
// ahead of the next one.
const (
	wideBlocks  = 4
	aheadOfWide = 2
)

func newReadahead(r *Reader) *readahead {
	chunk := r.c.cfg.ChunkBytes
	fits := min(moraine.MaxChunkSize, r.c.cfg.ReadaheadBytes/2, r.c.cfg.MemoryBytes/8) // at least two blocks
	block := chunk * max(1, min(stripeChunks, fits/chunk))
	most := int(r.c.cfg.ReadaheadBytes / block)
	return &readahead{r: r, block: block, most: max(most, 0), until: r.Size(), blocks: map[int64]*aheadBlock{}}
}

// read fills p, which lies within the file, from blocks that are fetched or being fetched, and
// otherwise directly from the servers.
func (a *readahead) read(ctx context.Context, p []byte, off int64) error {
	a.plan(ctx, off, int64(len(p)))
	if a.isWide(int64(len(p))) {
		return a.readWide(ctx, p, off)
	}
	return a.readThrough(ctx, p, off)
}

func (a *readahead) isWide(n int64) bool { return n >= wideBlocks*a.block }

// readWide is a wide read: it reads what no block covers while it copies the blocks.
func (a *readahead) readWide(ctx context.Context, p []byte, off int64) error {
	covered := a.covered(off)
	if n := int64(len(p)); covered <= 0 || covered >= n {
		return a.readThrough(ctx, p, off)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.r.read(ctx, p[covered:], off+covered) })
	g.Go(func() error { return a.readThrough(ctx, p[:covered], off) })
	return g.Wait()
}

// covered returns how many contiguous bytes from off on are in blocks.
func (a *readahead) covered(off int64) (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		at := off + n
		b := a.blocks[at/a.block*a.block]
		if b == nil || b.end() <= at {
			return n
		}
		n = b.end() - off
	}
}

// readThrough fills p block by block.
func (a *readahead) readThrough(ctx context.Context, p []byte, off int64) error {
	for len(p) > 0 {
		b := a.hold(off)
		n := min(int64(len(p)), a.gap(off))
		if b != nil {
			n = min(int64(len(p)), b.end()-off)
			if a.take(ctx, b, p[:n], off) {
				p, off = p[n:], off+n
				continue
			}
			if ctx.Err() != nil {
				return retry.ContextError(ctx, "read")
			}
		}
		if err := a.r.read(ctx, p[:n], off); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// expect announces that the reader will read exactly [off, until), in order.
func (a *readahead) expect(off, until int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until, a.places = until, places{{from: off, next: off, begin: off, streak: 1}}
}

func (b *aheadBlock) end() int64 { return b.off + int64(len(b.buf.Bytes())) }

// hold returns the block that covers off, for the caller to use until take; nil if there is
// none.
func (a *readahead) hold(off int64) *aheadBlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.blocks[off/a.block*a.block]
	if b != nil {
		b.users++
	}
	return b
}

// gap returns the number of bytes from off to the next block, or to the end of the file.
func (a *readahead) gap(off int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.r.Size() - off
	for at := range a.blocks {
		if at > off {
			n = min(n, at-off)
		}
	}
	return n
}

// take waits for a held block, copies from it, and ends its use. It returns false if the fetch
// failed, or ctx ended first.
func (a *readahead) take(ctx context.Context, b *aheadBlock, p []byte, off int64) bool {
	ok := a.await(ctx, b)
	if ok {
		copy(p, b.buf.Bytes()[off-b.off:])
		a.r.c.metrics.ReadaheadHits.Inc()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !ok && ctx.Err() == nil {
		a.drop(b)
	}
	a.letGo(b)
	return ok
}

// await waits for a held block, no longer than the client's patience. It returns false if the
// caller must read the bytes itself.
func (a *readahead) await(ctx context.Context, b *aheadBlock) bool {
	select {
	case <-b.ready:
		return b.err == nil
	default:
	}
	err := a.r.c.io.Limits.Fetched.Wait(ctx, func(ctx context.Context) error {
		select {
		case <-b.ready:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return err == nil && b.err == nil
}

// done ends one use of a held block.
func (a *readahead) done(b *aheadBlock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.letGo(b)
}

// close drops all blocks and waits for running fetches.
func (a *readahead) close() {
	a.mu.Lock()
	a.closed = true
	for _, b := range a.blocks {
		a.drop(b)
	}
	a.mu.Unlock()
	a.running.Wait()
}

var errStreamClosed = errors.New("the stream is closed")
