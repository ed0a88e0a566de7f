package mem

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

const (
	// writers is how many chunks of a device are written behind at a time: enough
	// that they share its syncs.
	writers = 8
	// retryPause is how long a chunk waits that the device had no room for.
	retryPause = time.Second
	// lastTries is how often such a chunk is tried after the end was asked for.
	lastTries = 3
)

// behind is the chunks of a device that are in memory alone.
type behind struct {
	running sync.WaitGroup // Run

	mu      sync.Mutex // guards what follows
	change  *sync.Cond // queue has grown, or accepts has changed
	accepts bool
	queue   []*dirtyChunk
	chunks  map[moraine.ChunkID]*dirtyChunk // queued, being written, and those that cannot be
	fresh   int                             // of chunks, what replaces nothing
	bytes   int64
	rotten  rotten
}

// dirtyChunk is one chunk that is to be written.
type dirtyChunk struct {
	*held
	arrived  time.Time     // when it was added
	replaces bool          // a chunk of an older version is on the device
	done     chan struct{} // closed when it is written, or is not to be any more
	err      error         // why it is not, before done is closed
	forgone  bool          // guarded by behind.mu: not to be written any more
	failed   bool          // guarded by behind.mu: no writer has it any more
}

func newBehind() *behind {
	b := &behind{chunks: map[moraine.ChunkID]*dirtyChunk{}}
	b.change = sync.NewCond(&b.mu)
	return b
}

// admits reports whether chunks are written behind.
func (b *behind) admits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accepts
}

// add takes a chunk; false: nobody would write it. The caller holds the claim, and
// has forgone an older version of the chunk.
func (b *behind) add(d *dirtyChunk) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.accepts {
		return false
	}
	b.chunks[d.key.id] = d
	b.bytes += d.size()
	if !d.replaces {
		b.fresh++
	}
	b.queue = append(b.queue, d)
	b.change.Signal()
	return true
}

// remove takes a chunk out of the index. The caller holds mu.
func (b *behind) remove(d *dirtyChunk) {
	if b.chunks[d.key.id] != d {
		return
	}
	delete(b.chunks, d.key.id)
	b.bytes -= d.size()
	if !d.replaces {
		b.fresh--
	}
}

// header returns the header of a dirty chunk; nil: the device knows all there is.
func (b *behind) header(id moraine.ChunkID) *tiers.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.chunks[id]; d != nil {
		h := d.held.header
		return &h
	}
	return nil
}

// from returns the headers of dirty chunks with from <= ID, in order.
func (b *behind) from(from moraine.ChunkID) []tiers.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []tiers.Header
	for id, d := range b.chunks {
		if compare(from, id) <= 0 {
			out = append(out, d.held.header)
		}
	}
	slices.SortFunc(out, func(a, b tiers.Header) int { return compare(a.ID, b.ID) })
	return out
}

func compare(a, b moraine.ChunkID) int {
	return cmp.Or(cmp.Compare(a.Stripe, b.Stripe), cmp.Compare(a.Index, b.Index))
}

// merge joins two lists in order; of a chunk that is in both, the later version.
func merge(below, dirty []tiers.Header, limit int) []tiers.Header {
	out := make([]tiers.Header, 0, min(limit, len(below)+len(dirty)))
	for len(out) < limit && (len(below) > 0 || len(dirty) > 0) {
		switch {
		case len(dirty) == 0 || (len(below) > 0 && compare(below[0].ID, dirty[0].ID) < 0):
			out, below = append(out, below[0]), below[1:]
		case len(below) == 0 || compare(below[0].ID, dirty[0].ID) > 0:
			out, dirty = append(out, dirty[0]), dirty[1:]
		default:
			h := below[0]
			if dirty[0].Version > h.Version {
				h = dirty[0]
			}
			out, below, dirty = append(out, h), below[1:], dirty[1:]
		}
	}
	return out
}

// more returns what dirty chunks add to the usage of the device.
func (b *behind) more() (chunks int, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fresh, b.bytes
}

// next returns a chunk to be written, nil at the end of all work.
func (b *behind) next() *dirtyChunk {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.queue) == 0 && b.accepts {
		b.change.Wait()
	}
	if len(b.queue) == 0 {
		return nil
	}
	d := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	return d
}

func (b *behind) accept(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accepts = yes
	b.change.Broadcast()
}

// Admit lets Take leave chunks to be written behind, from now on. Run must follow.
func (t *Tier) Admit() { t.behind.accept(true) }

// Run writes behind what Take has taken, until ctx ends, and returns when all of it
// is written; an error names what could not be. It is called once.
func (t *Tier) Run(ctx context.Context) error {
	t.behind.running.Add(1)
	defer t.behind.running.Done()
	t.behind.accept(true)
	var g errgroup.Group
	for range writers {
		g.Go(func() error { return t.writeBehind(context.WithoutCancel(ctx)) })
	}
	<-ctx.Done()
	t.behind.accept(false)
	return g.Wait()
}

// writeBehind is one writer.
func (t *Tier) writeBehind(ctx context.Context) error {
	var lost error
	for {
		d := t.behind.next()
		if d == nil {
			return lost
		}
		if err := t.clean(ctx, d); err != nil {
			t.m.deps.Log.Error("a chunk that was acknowledged in memory could not be written", "chunk", d.key.id.String(), "err", err)
			lost = errors.Join(lost, err)
		}
	}
}

// clean writes one chunk. It is tried again while the device is full; where it
// fails the chunk stays in memory, for as long as the process lives.
func (t *Tier) clean(ctx context.Context, d *dirtyChunk) error {
	tries := 0
	for {
		err := t.write(ctx, d)
		if err == nil {
			return nil
		}
		if last := !t.behind.admits(); last {
			tries++
		}
		if !errors.Is(err, moraine.NoSpace) || tries >= lastTries {
			return t.fail(d, err)
		}
		<-t.m.deps.Clock.After(retryPause)
	}
}

// write puts a chunk on the device, unless it is not to be any more.
func (t *Tier) write(ctx context.Context, d *dirtyChunk) error {
	if err := t.claims.Take(ctx, d.key.id); err != nil {
		return gaveUp("mem.write", d.key.id, err)
	}
	defer t.claims.Drop(d.key.id)
	t.behind.mu.Lock()
	forgone := d.forgone
	t.behind.mu.Unlock()
	if !forgone {
		t.verify(d)
		err := t.lower.Put(ctx, d.held.header, d.data, d.sums)
		// A later version, which Put brought, has taken its place.
		if err != nil && !errors.Is(err, moraine.Stale) {
			return err
		}
	}
	t.finish(d)
	return nil
}

// fail leaves a chunk to itself that cannot be written. It stays in memory, unless
// it was forgone meanwhile.
func (t *Tier) fail(d *dirtyChunk, err error) error {
	t.behind.mu.Lock()
	d.err, d.failed = err, true
	forgone := d.forgone
	t.behind.mu.Unlock()
	close(d.done)
	if forgone {
		t.release(d)
	}
	return err
}

// finish ends a dirty chunk: it is on the device, or is not to be. The caller holds
// the claim.
func (t *Tier) finish(d *dirtyChunk) {
	t.behind.mu.Lock()
	t.behind.remove(d)
	t.behind.mu.Unlock()
	t.release(d)
	close(d.done)
}

// release gives back what a dirty chunk holds.
func (t *Tier) release(d *dirtyChunk) {
	size := d.size()
	t.m.cache.cleaned(d.held)
	t.m.dirty.Release(size)
}

// forgo ends a dirty chunk that is not to be written any more; its writer, where it
// still has one, finds so. The caller holds the claim.
func (t *Tier) forgo(id moraine.ChunkID) {
	t.behind.mu.Lock()
	d := t.behind.chunks[id]
	failed := d != nil && d.failed
	if d != nil {
		t.behind.remove(d)
		d.forgone = true
	}
	t.behind.mu.Unlock()
	t.m.cache.drop(t.key(id))
	if failed {
		t.release(d)
	}
}

// forgoAll ends what could not be written, at the end.
func (t *Tier) forgoAll() {
	for _, h := range t.behind.from(moraine.ChunkID{}) {
		t.forgo(h.ID)
	}
}

// Sync returns when the chunks are on the device as far as they were taken before,
// or with what went wrong. One that is not here at all is no error.
func (t *Tier) Sync(ctx context.Context, ids []moraine.ChunkID) error {
	for _, id := range ids {
		t.behind.mu.Lock()
		d := t.behind.chunks[id]
		t.behind.mu.Unlock()
		if d == nil {
			continue
		}
		select {
		case <-d.done:
			if d.err != nil {
				return d.err
			}
		case <-ctx.Done():
			return gaveUp("mem.Sync", id, ctx.Err())
		}
	}
	return t.lower.Err()
}

// SyncAll is Sync of all that is dirty.
func (t *Tier) SyncAll(ctx context.Context) error {
	headers := t.behind.from(moraine.ChunkID{})
	ids := make([]moraine.ChunkID, len(headers))
	for n := range headers {
		ids[n] = headers[n].ID
	}
	return t.Sync(ctx, ids)
}

// Dirty reports whether a chunk is in memory alone now.
func (t *Tier) Dirty(id moraine.ChunkID) bool { return t.behind.header(id) != nil }

// Where returns the header of a chunk and the level that it is at: Memory while it is
// in this process alone, NVMe once it is on the device, synced. Errors: NotFound,
// where it is at none and is not on its way to one; Corrupt, where it rotted in memory
// before it was written; and those of the device.
func (t *Tier) Where(ctx context.Context, id moraine.ChunkID) (tiers.Header, moraine.Level, error) {
	if err := t.begin("mem.Where"); err != nil {
		return tiers.Header{}, 0, err
	}
	defer t.calls.Done()
	// In this order: a chunk is on the device before it ceases to be dirty.
	if h := t.behind.header(id); h != nil {
		return *h, moraine.Memory, nil
	}
	h, err := t.lower.Get(ctx, id, 0, nil)
	if err == nil && t.behind.isRotten(&h) {
		err = &moraine.Error{Op: "mem.Where", Ref: id.String(), Kind: moraine.Corrupt, Err: errors.New("it rotted in memory before it was written")}
	}
	return h, moraine.NVMe, err
}
