package mem

import (
	"container/list"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

// A deferred chunk is a dirty one that no writer takes yet: its step stays in memory by its
// policy, and is often removed before a device needs to have it. The chunk becomes an ordinary
// dirty one, and is written, in each of these cases:
//   - the deferred chunks of the host have more than three quarters of the dirty memory, or a
//     caller waits for a buffer. The oldest of all devices is then the first;
//   - Deferred.Write or Sync selects it;
//   - the tier ends.
//
// Until then it is as safe as every dirty chunk. If its step is removed first, Deferred.Drop gives its
// memory back.

// deferred are the deferred chunks of all devices of a host.
type deferred struct {
	limit int64 // of their bytes

	mu      sync.Mutex // guards the fields below; taken after behind.mu
	order   list.List  // of *dirtyChunk; the oldest is in front
	bytes   int64
	pressed uint64 // chunks that were written because memory was short
}

// add makes a chunk the newest one.
func (f *deferred) add(d *dirtyChunk) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d.place = f.order.PushBack(d)
	f.bytes += d.size()
}

// take removes a chunk; false: it is not deferred.
func (f *deferred) take(d *dirtyChunk) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.place == nil {
		return false
	}
	f.order.Remove(d.place)
	d.place = nil
	f.bytes -= d.size()
	return true
}

// oldest returns the oldest chunk, which stays where it is; nil if there is none. With over, it
// returns one only while the limit is exceeded.
func (f *deferred) oldest(over bool) *dirtyChunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.order.Len() == 0 || over && f.bytes <= f.limit {
		return nil
	}
	return f.order.Front().Value.(*dirtyChunk)
}

// of returns the chunks of one device, oldest first.
func (f *deferred) of(b *behind) (out []*dirtyChunk) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for e := f.order.Front(); e != nil; e = e.Next() {
		if d := e.Value.(*dirtyChunk); d.behind == b {
			out = append(out, d)
		}
	}
	return out
}

// stats returns the bytes of deferred chunks, and how many chunks were written for want of memory.
func (f *deferred) stats() (bytes int64, pressed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes, f.pressed
}

// rise hands a deferred chunk to the writers of its device; false: it is not deferred.
func (b *behind) rise(d *dirtyChunk) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.enqueueDeferred(d)
}

// enqueueDeferred is rise for a caller that holds mu. Under it, a chunk is deferred or in the queue: the
// end of the writers sees it in one of them.
func (b *behind) enqueueDeferred(d *dirtyChunk) bool {
	if !b.undefer(d) {
		return false
	}
	b.queue = append(b.queue, d)
	b.change.Signal()
	return true
}

// undefer ends that a chunk is deferred; false: it is not. The caller holds mu.
func (b *behind) undefer(d *dirtyChunk) bool {
	if !b.deferred.take(d) {
		return false
	}
	if b.steps[d.step]--; b.steps[d.step] == 0 {
		delete(b.steps, d.step)
	}
	return true
}

// trim has the oldest deferred chunks written while they exceed their limit.
func (m *Memory) trim() {
	for d := m.deferred.oldest(true); d != nil; d = m.deferred.oldest(true) {
		m.press(d)
	}
}

// shorten has the oldest deferred chunks written that have so many bytes: a caller waits for them.
func (m *Memory) shorten(bytes int64) {
	for bytes > 0 {
		d := m.deferred.oldest(false)
		if d == nil {
			return
		}
		bytes -= d.size()
		m.press(d)
	}
}

// press has one deferred chunk written because memory is short.
func (m *Memory) press(d *dirtyChunk) {
	if !d.behind.rise(d) {
		return // another caller did, or the chunk was deleted
	}
	m.deferred.mu.Lock()
	defer m.deferred.mu.Unlock()
	m.deferred.pressed++
}

// Deferred are the deferred chunks of a device.
type Deferred struct{ t *Tier }

// Deferred returns the deferred chunks of the device.
func (t *Tier) Deferred() Deferred { return Deferred{t} }

// Steps returns the steps of the chunks, as given to TakeDeferred, in order and without repetition. It costs
// nothing for each chunk.
func (f Deferred) Steps() []uint64 {
	b := f.t.behind
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.steps))
}

// Of returns the headers of the chunks of the steps that want selects, oldest first.
func (f Deferred) Of(want func(step uint64) bool) (out []tiers.Header) {
	t := f.t
	for _, d := range t.m.deferred.of(t.behind) {
		if want(d.step) {
			out = append(out, d.held.header)
		}
	}
	return out
}

// Drop deletes those of some chunks that TakeDeferred took and that have never been on the device,
// also those that are about to be written. It returns these. Readers that have such a chunk keep it until they
// end. The error is Canceled, Timeout or Unavailable; the chunks returned with it are deleted.
func (f Deferred) Drop(ctx context.Context, deletions []tiers.Deletion) (dropped []tiers.Deletion, err error) {
	const op = "mem.Drop"
	t := f.t
	if err := t.begin(op); err != nil {
		return nil, err
	}
	defer t.calls.Done()
	for _, d := range deletions {
		// A writer behind holds the claim. After it, the chunk is on the device.
		if err := t.claims.Take(ctx, d.ID); err != nil {
			return dropped, gaveUp(op, d.ID, err)
		}
		if t.behind.onlyDeferred(d) {
			t.cancelWrite(d.ID, true)
			dropped = append(dropped, d)
		}
		t.claims.Drop(d.ID)
	}
	return dropped, nil
}

// onlyDeferred reports whether a chunk was deferred, and no version of it is on the device. The caller holds
// the claim.
func (b *behind) onlyDeferred(d tiers.Deletion) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.chunks[d.ID]
	return c != nil && c.step != 0 && !c.failed && !c.replaces && c.held.header.Version < d.Below
}

// Write has the chunks that want selects written behind. It does not wait for that. step is as given to
// TakeDeferred.
func (f Deferred) Write(want func(id moraine.ChunkID, step uint64) bool) {
	t := f.t
	for _, d := range t.m.deferred.of(t.behind) {
		if want(d.key.id, d.step) {
			t.behind.rise(d)
		}
	}
}
