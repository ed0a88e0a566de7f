package mem

import (
	"cmp"
	"container/list"
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
	// calm is how many chunks of a device are written behind concurrently while there is room
	// for more: each holds up what others sync on the same disk, such as the commit of the file that
	// the chunks belong to. writers is how many it may be when the room gets short: enough for
	// them to share syncs.
	calm    = 2
	writers = 8
	// retryPause is how long a chunk waits after the device had no space for it.
	retryPause = time.Second
	// lastTries is how often such a chunk is retried after the end was requested.
	lastTries = 3
)

// behind holds the chunks of a device that are only in memory.
type behind struct {
	running  sync.WaitGroup // Run
	deferred *deferred      // of the host

	short func() bool // the memory for dirty chunks gets short

	mu      sync.Mutex // guards the fields below
	change  *sync.Cond // signals that a writer may begin a chunk, or accepts has changed
	accepts bool
	queue   []*dirtyChunk
	writing int                             // writers that have a chunk
	chunks  map[moraine.ChunkID]*dirtyChunk // deferred, queued, being written, and those that cannot be written
	fresh   int                             // number of chunks that replace none on the device
	bytes   int64
	rotten  rotten
}

// dirtyChunk is one chunk that has to be written.
type dirtyChunk struct {
	*held
	behind   *behind       // of its device
	step     uint64        // see TakeDeferred; 0: its write is not deferred
	place    *list.Element // guarded by deferred.mu: in deferred.order; nil: it is not deferred, or not any more
	arrived  time.Time     // when it was added
	replaces bool          // the device has an older version of the chunk
	done     chan struct{} // closed when the chunk is written, or will never be
	err      error         // why it will never be written; set before done is closed
	canceled bool          // guarded by behind.mu: do not write it
	failed   bool          // guarded by behind.mu: no writer will try it again
}

func newBehind(m *Memory) *behind {
	b := &behind{short: m.short, deferred: &m.deferred, chunks: map[moraine.ChunkID]*dirtyChunk{}}
	b.change = sync.NewCond(&b.mu)
	return b
}

// admits reports whether the tier writes chunks behind.
func (b *behind) admits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accepts
}

// add takes a chunk; false: no writer would write it. The caller holds the claim,
// and has canceled an older version of the chunk.
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
	if d.step != 0 {
		b.deferred.add(d)
		return true
	}
	b.queue = append(b.queue, d)
	b.change.Signal()
	return true
}

// remove removes a chunk from the index. The caller holds mu.
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

// header returns the header of a dirty chunk; nil: the device has the current
// state.
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

// merge joins two ordered lists. Of a chunk that is in both, it takes the later
// version.
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

// next returns the next chunk to write, or nil when all work is done. The caller calls wrote after it.
func (b *behind) next() *dirtyChunk {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.accepts && (len(b.queue) == 0 || (b.writing >= calm && !b.short())) {
		b.change.Wait()
	}
	if len(b.queue) == 0 {
		return nil
	}
	b.writing++
	d := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	return d
}

// wrote ends what next began.
func (b *behind) wrote() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing--
	b.change.Signal()
}

func (b *behind) accept(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accepts = yes
	if !yes {
		for _, d := range b.deferred.of(b) {
			b.enqueueDeferred(d)
		}
	}
	b.change.Broadcast()
}

// Admit allows Take, from now on, to leave chunks that are written behind. Run must
// follow.
func (t *Tier) Admit() { t.behind.accept(true) }

// Run writes behind the chunks that Take has taken, until ctx ends. It returns when
// all of them are written. An error names those that could not be. It is called
// once.
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
		err := t.clean(ctx, d)
		t.behind.wrote()
		if err != nil {
			t.m.deps.Log.Error("memory chunk write failed", "chunk", d.key.id.String(), "err", err)
			lost = errors.Join(lost, err)
		}
	}
}

// clean writes one chunk. It retries while the device is full. If the write fails,
// the chunk stays in memory for as long as the process lives.
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

// write puts a chunk on the device, unless the chunk was canceled.
func (t *Tier) write(ctx context.Context, d *dirtyChunk) error {
	if err := t.claims.Take(ctx, d.key.id); err != nil {
		return gaveUp("mem.write", d.key.id, err)
	}
	defer t.claims.Drop(d.key.id)
	t.behind.mu.Lock()
	canceled := d.canceled
	t.behind.mu.Unlock()
	if !canceled {
		t.verify(d)
		err := t.lower.Put(ctx, d.held.header, d.data, d.sums)
		// Put brought a later version, which has replaced this one.
		if err != nil && !errors.Is(err, moraine.Stale) {
			return err
		}
	}
	t.finish(d)
	return nil
}

// fail ends the write of a chunk without success. The chunk stays in memory, unless
// its write was canceled meanwhile.
func (t *Tier) fail(d *dirtyChunk, err error) error {
	t.behind.mu.Lock()
	d.err, d.failed = err, true
	canceled := d.canceled
	t.behind.mu.Unlock()
	close(d.done)
	if canceled {
		t.release(d)
	}
	return err
}

// finish ends a dirty chunk: it is on the device, or will never be. The caller
// holds the claim.
func (t *Tier) finish(d *dirtyChunk) {
	t.behind.mu.Lock()
	t.behind.remove(d)
	t.behind.mu.Unlock()
	t.release(d)
	close(d.done)
}

// release returns the memory of a dirty chunk.
func (t *Tier) release(d *dirtyChunk) {
	size := d.size()
	t.m.cache.cleaned(d.held)
	t.m.dirty.Release(size)
}

// cancelWrite ends a dirty chunk that need not be written. Its writer, if it has one,
// notices that. The caller holds the claim.
func (t *Tier) cancelWrite(id moraine.ChunkID) {
	t.behind.mu.Lock()
	d := t.behind.chunks[id]
	failed, waits := d != nil && d.failed, false
	if d != nil {
		t.behind.remove(d)
		d.canceled = true
		waits = t.m.deferred.take(d)
	}
	t.behind.mu.Unlock()
	t.m.cache.drop(t.key(id))
	if failed || waits { // no writer has it
		t.release(d)
	}
	if waits {
		close(d.done)
	}
}

// cancelAll ends, at the end, the chunks that could not be written.
func (t *Tier) cancelAll() {
	for _, h := range t.behind.from(moraine.ChunkID{}) {
		t.cancelWrite(h.ID)
	}
}

// Sync waits until the chunks that were taken before the call are on the device, also
// the deferred ones. It returns the error of a failed write. A chunk that is not here at all is no error.
func (t *Tier) Sync(ctx context.Context, ids []moraine.ChunkID) error {
	for _, id := range ids {
		t.behind.mu.Lock()
		d := t.behind.chunks[id]
		if d != nil {
			t.behind.enqueueDeferred(d)
		}
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

// SyncAll is Sync of all dirty chunks.
func (t *Tier) SyncAll(ctx context.Context) error {
	headers := t.behind.from(moraine.ChunkID{})
	ids := make([]moraine.ChunkID, len(headers))
	for n := range headers {
		ids[n] = headers[n].ID
	}
	return t.Sync(ctx, ids)
}

// Dirty reports whether a chunk is only in memory now.
func (t *Tier) Dirty(id moraine.ChunkID) bool { return t.behind.header(id) != nil }

// Where returns the header of a chunk and its level: Memory while only this
// process has it, NVMe once it is on the device, synced. It is NotFound if the
// chunk is at no level and on its way to none. It is Corrupt if the chunk was
// damaged in memory before it was written. The other errors are those of the
// device.
func (t *Tier) Where(ctx context.Context, id moraine.ChunkID) (tiers.Header, moraine.Level, error) {
	if err := t.begin("mem.Where"); err != nil {
		return tiers.Header{}, 0, err
	}
	defer t.calls.Done()
	// In this order, since a chunk is on the device before it stops being dirty.
	if h := t.behind.header(id); h != nil {
		return *h, moraine.Memory, nil
	}
	h, err := t.lower.Get(ctx, id, 0, nil)
	if err == nil && t.behind.isRotten(&h) {
		err = &moraine.Error{Op: "mem.Where", Ref: id.String(), Kind: moraine.Corrupt, Err: errors.New("chunk was damaged in memory before it was written")}
	}
	return h, moraine.NVMe, err
}
