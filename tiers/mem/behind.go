package mem

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
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
	steps   map[uint64]int                  // how many deferred chunks each step has
	fresh   int                             // number of chunks that replace none on the device
	bytes   int64
	rotten  rotten
	left    departures // since the last call of Left
}

// dirtyChunk is one chunk that has to be written.
type dirtyChunk struct {
	*held
	behind   *behind       // of its device
	step     uint64        // see TakeDeferred; 0: its write is not deferred
	place    *list.Element // guarded by deferred.mu: in deferred.order; nil: it is not deferred
	arrived  time.Time     // when it was added
	replaces bool          // the device has an older version of the chunk
	done     chan struct{} // closed when the chunk is written, or will never be
	err      error         // why it will never be written; set before done is closed
	canceled bool          // guarded by behind.mu: do not write it
	failed   bool          // guarded by behind.mu: no writer will try it again
}

func newBehind(m *Memory) *behind {
	b := &behind{short: m.short, deferred: &m.deferred, chunks: map[moraine.ChunkID]*dirtyChunk{}, steps: map[uint64]int{}}
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
		b.steps[d.step]++
		return true
	}
	b.queue = append(b.queue, d)
	b.change.Signal()
	return true
}

// remove removes a chunk from the index. deleted says that it was deleted, and not replaced or written. The
// caller holds mu.
func (b *behind) remove(d *dirtyChunk, deleted bool) {
	if b.chunks[d.key.id] != d {
		return
	}
	b.left.add(d.key.id, deleted)
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

// rest runs fn in the middle of what next began. Another writer may begin a chunk meanwhile: one of a full
// device writes nothing while it waits, and must not count as one that does.
func (b *behind) rest(fn func()) {
	b.wrote()
	fn()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing++
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

// enqueue hands the chunks to the writers that are deferred, and returns those that are dirty.
func (b *behind) enqueue(ids []moraine.ChunkID) map[moraine.ChunkID]*dirtyChunk {
	b.mu.Lock()
	defer b.mu.Unlock()
	dirty := make(map[moraine.ChunkID]*dirtyChunk)
	for _, id := range ids {
		if d := b.chunks[id]; d != nil {
			b.enqueueDeferred(d)
			dirty[id] = d
		}
	}
	return dirty
}

// Sync waits until the chunks that were taken before the call are on the device, also
// the deferred ones. It returns the error of a failed write. A chunk that is not here at all is no error.
func (t *Tier) Sync(ctx context.Context, ids []moraine.ChunkID) error {
	for id, d := range t.behind.enqueue(ids) {
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
