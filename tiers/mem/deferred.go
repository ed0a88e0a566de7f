package mem

import (
	"container/list"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
)

// A deferred chunk is a dirty one that no writer takes yet: its step stays in memory by its
// policy, and is often removed before a device needs to have it. The chunk becomes an ordinary
// dirty one, and is written, in each of these cases:
//   - the deferred chunks of the host have more than three quarters of the dirty memory, or a
//     caller waits for a buffer. The oldest of all devices is then the first;
//   - WriteDeferred or Sync selects it;
//   - the tier ends.
//
// Until then it is as safe as every dirty chunk.

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
	if !b.deferred.take(d) {
		return false
	}
	b.queue = append(b.queue, d)
	b.change.Signal()
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

// Deferred returns the steps whose chunks the tier defers, as given to TakeDeferred, without
// repetition.
func (t *Tier) Deferred() (steps []uint64) {
	for _, d := range t.m.deferred.of(t.behind) {
		steps = append(steps, d.step)
	}
	slices.Sort(steps)
	return slices.Compact(steps)
}

// WriteDeferred has the deferred chunks that want selects written behind. It does not wait for
// that. step is as given to TakeDeferred.
func (t *Tier) WriteDeferred(want func(id moraine.ChunkID, step uint64) bool) {
	for _, d := range t.m.deferred.of(t.behind) {
		if want(d.key.id, d.step) {
			t.behind.rise(d)
		}
	}
}
