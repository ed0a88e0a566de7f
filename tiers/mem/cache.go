package mem

import (
	"container/list"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/tiers"
)

// chunkKey names a chunk of one of the devices that share an arena.
type chunkKey struct {
	tier int
	id   moraine.ChunkID
}

// held is a whole chunk in memory.
type held struct {
	key    chunkKey
	header tiers.Header
	data   []byte
	memory int64    // that free frees; a chunk that was read has the head of its record in front of data
	sums   []uint32 // checksums of its blocks
	free   func()   // frees the memory

	// Guarded by cache.mu:
	refs  int           // readers, and the writer behind
	gone  bool          // no longer found: freed when it has no readers
	dirty bool          // not on the device yet: not evicted
	hits  uint8         // recent hits, up to maxHits
	upTo  int64         // where the last read of it ended
	queue *list.List    // small or main; nil while dirty
	place *list.Element // its element in queue
}

const maxHits = 3

// cache finds the chunks that are in memory, and decides which to evict. It is
// S3-FIFO (J. Yang and others, "FIFO queues are all you need for cache eviction",
// SOSP 2023). A new chunk enters a small queue, a tenth of the memory. It leaves
// the queue soon unless it is read again. Only chunks that are read again, or that
// return shortly after they left, enter the main queue. A scan of everything
// therefore passes through the small queue, and chunks that are read repeatedly
// stay.
//
// Clients read chunks in pieces. A read that begins where the last one ended, or
// later, belongs to the same pass over the chunk and is no hit.
type cache struct {
	arena *Arena

	mu          sync.Mutex // guards the fields below
	chunks      map[chunkKey]*held
	small, main list.List // of *held; the newest is in front
	smallBytes  int64
	mainBytes   int64
	ghosts      map[chunkKey]*list.Element
	ghostOrder  list.List // of chunkKey
	fills       map[chunkKey]*fill
	dirtyBytes  int64
	hits        uint64
	misses      uint64
	evictions   uint64
}

// fill is a read from the device whose bytes will be cached, or a put. A change to
// the chunk meanwhile makes it void.
type fill struct{ void bool }

func newCache(arena *Arena) *cache {
	c := &cache{arena: arena, chunks: map[chunkKey]*held{}, ghosts: map[chunkKey]*list.Element{}, fills: map[chunkKey]*fill{}}
	arena.reclaim = c.evict
	return c
}

// pin returns a chunk that is in memory, which the caller must unpin; nil: it is
// not in memory. off and n are the range that the caller will read.
func (c *cache) pin(key chunkKey, off, n int64) *held {
	h := c.pinIf(key, off, n)
	if h == nil {
		c.mu.Lock()
		c.misses++
		c.mu.Unlock()
	}
	return h
}

// pinIf is pin by a caller that may call pin next: it counts no miss.
func (c *cache) pinIf(key chunkKey, off, n int64) *held {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.chunks[key]
	if h == nil {
		return nil
	}
	c.hits++
	if off < h.upTo && h.hits < maxHits {
		h.hits++
	}
	h.upTo = off + n
	h.refs++
	return h
}

// unpin releases a pinned chunk.
func (c *cache) unpin(h *held) {
	c.mu.Lock()
	h.refs--
	idle := h.refs == 0 && !h.dirty
	free := h.refs == 0 && h.gone
	c.mu.Unlock()
	if free {
		h.free()
	} else if idle {
		c.relieve()
	}
}

// relieve frees memory for calls that wait for it.
func (c *cache) relieve() {
	for c.arena.pressed() && c.evict() {
	}
}

// put makes a chunk visible in place of another one of its key. It takes buf.
func (c *cache) put(h *held) {
	c.mu.Lock()
	old := c.insert(h)
	c.mu.Unlock()
	old.freeIfIdle()
	c.relieve()
}

// insert makes a chunk visible. It returns the chunk that it replaced, as remove
// does. The caller holds mu.
func (c *cache) insert(h *held) *held {
	old := c.remove(h.key)
	c.chunks[h.key] = h
	if h.dirty {
		c.dirtyBytes += h.size()
	} else {
		c.enqueue(h)
	}
	return old
}

// enqueue makes a clean chunk evictable. The caller holds mu.
func (c *cache) enqueue(h *held) {
	if e := c.ghosts[h.key]; e != nil {
		c.ghostOrder.Remove(e)
		delete(c.ghosts, h.key)
		c.push(&c.main, h)
		return
	}
	c.push(&c.small, h)
}

// push puts a chunk at the front of a queue. The caller holds mu.
func (c *cache) push(q *list.List, h *held) {
	h.queue, h.place = q, q.PushFront(h)
	*c.bytesOf(q) += h.size()
}

// pop removes a chunk from its queue. The caller holds mu.
func (c *cache) pop(h *held) {
	if h.queue == nil {
		return
	}
	h.queue.Remove(h.place)
	*c.bytesOf(h.queue) -= h.size()
	h.queue, h.place = nil, nil
}

func (c *cache) bytesOf(q *list.List) *int64 {
	if q == &c.small {
		return &c.smallBytes
	}
	return &c.mainBytes
}

// size returns the memory that the chunk keeps.
func (h *held) size() int64 { return h.memory }

// remove removes a chunk, and makes a running fill of it void. The caller holds mu,
// and calls freeIfIdle of the result without it.
func (c *cache) remove(key chunkKey) *held {
	if f := c.fills[key]; f != nil {
		f.void = true
	}
	h := c.chunks[key]
	if h == nil {
		return nil
	}
	delete(c.chunks, key)
	c.pop(h)
	h.gone = true
	if h.refs > 0 {
		return nil // its last reader frees it
	}
	return h
}

// freeIfIdle frees what remove returned; nil does nothing.
func (h *held) freeIfIdle() {
	if h != nil {
		h.free()
	}
}

// drop makes a chunk invisible, dirty or not.
func (c *cache) drop(key chunkKey) { c.dropIf(key, func(*held) bool { return true }) }

// dropOther drops a chunk whose header differs from h.
func (c *cache) dropOther(key chunkKey, h *tiers.Header) {
	c.dropIf(key, func(have *held) bool { return have.header != *h })
}

// dropClean drops a clean chunk of a version below the one given, or of any version
// if below is 0.
func (c *cache) dropClean(key chunkKey, below moraine.LayoutVersion) {
	c.dropIf(key, func(have *held) bool { return !have.dirty && (below == 0 || have.header.Version < below) })
}

// dropIf drops a chunk for which so is true. A running fill of the chunk becomes
// void: it may have read the earlier contents.
func (c *cache) dropIf(key chunkKey, so func(*held) bool) {
	var old *held
	c.mu.Lock()
	if h := c.chunks[key]; h == nil || so(h) {
		old = c.remove(key)
	}
	c.mu.Unlock()
	old.freeIfIdle()
}

// dropTier drops all chunks of a device.
func (c *cache) dropTier(tier int) {
	c.mu.Lock()
	var old []*held
	for key := range c.chunks {
		if key.tier == tier {
			old = append(old, c.remove(key))
		}
	}
	c.mu.Unlock()
	for _, h := range old {
		h.freeIfIdle()
	}
}

// begin announces a read from the device whose chunk will be cached. It returns
// false if another caller already reads that chunk. keep or forget must follow.
func (c *cache) begin(key chunkKey) (*fill, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fills[key] != nil || c.chunks[key] != nil {
		return nil, false
	}
	f := &fill{}
	c.fills[key] = f
	return f, true
}

// keep takes a chunk that was read, pinned for the reader. It returns false, and
// does not take the chunk, if the chunk was changed meanwhile.
func (c *cache) keep(f *fill, h *held) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(h.key, f)
	if f.void || c.chunks[h.key] != nil {
		return false
	}
	h.refs = 1
	c.chunks[h.key] = h
	c.enqueue(h)
	return true
}

func (c *cache) forget(key chunkKey, f *fill) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(key, f)
}

// end ends a fill, unless another one has replaced it. The caller holds mu.
func (c *cache) end(key chunkKey, f *fill) {
	if c.fills[key] == f {
		delete(c.fills, key)
	}
}

// announce announces a put to the device whose chunk will be cached. Running reads
// of the earlier contents are not cached. putUnless or forget must follow.
func (c *cache) announce(key chunkKey) *fill {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.fills[key]; f != nil {
		f.void = true
	}
	f := &fill{}
	c.fills[key] = f
	return f
}

// putUnless is put, unless the chunk was deleted since it was announced. It takes
// the buffer in either case.
func (c *cache) putUnless(f *fill, h *held) {
	c.mu.Lock()
	c.end(h.key, f)
	if f.void {
		c.mu.Unlock()
		h.free()
		return
	}
	old := c.insert(h)
	c.mu.Unlock()
	old.freeIfIdle()
	c.relieve()
}

// evict evicts one chunk without users; false: there is none.
func (c *cache) evict() bool {
	c.mu.Lock()
	h := c.victim()
	if h != nil {
		delete(c.chunks, h.key)
		h.gone = true
		c.evictions++
	}
	c.mu.Unlock()
	if h == nil {
		return false
	}
	h.free()
	return true
}

// victim takes the chunk to evict out of its queue. It looks at each chunk a few
// times at most: a chunk goes round once for each hit, and while it has readers.
func (c *cache) victim() *held {
	for left := (maxHits + 2) * (c.small.Len() + c.main.Len()); left > 0; left-- {
		q := &c.main
		if c.main.Len() == 0 || (c.small.Len() > 0 && 9*c.smallBytes >= c.mainBytes) {
			q = &c.small
		}
		h := q.Back().Value.(*held)
		c.pop(h)
		switch {
		case h.refs > 0:
			c.push(&c.main, h)
		case q == &c.small && h.hits == 0:
			c.remember(h.key)
			return h
		case q == &c.small:
			h.hits = 0
			c.push(&c.main, h)
		case h.hits > 0:
			h.hits--
			c.push(&c.main, h)
		default:
			return h
		}
	}
	return nil
}

// remember notes that a chunk has left the small queue. If it returns soon, it
// enters the main queue. The cache remembers as many keys as it has chunks.
func (c *cache) remember(key chunkKey) {
	c.ghosts[key] = c.ghostOrder.PushFront(key)
	for c.ghostOrder.Len() > max(len(c.chunks), minGhosts) {
		oldest := c.ghostOrder.Back()
		delete(c.ghosts, c.ghostOrder.Remove(oldest).(chunkKey))
	}
}

const minGhosts = 64

// cleaned notes that the device has a dirty chunk too, and unpins it.
func (c *cache) cleaned(h *held) {
	c.mu.Lock()
	h.dirty = false
	c.dirtyBytes -= h.size()
	if !h.gone {
		c.enqueue(h)
	}
	c.mu.Unlock()
	c.unpin(h)
}

// chunkOf makes a clean chunk of a buffer, which it takes.
func chunkOf(key chunkKey, h tiers.Header, buf *bufpool.Buffer, sums []uint32) *held {
	return &held{key: key, header: h, data: buf.Bytes(), memory: int64(cap(buf.Bytes())), sums: sums, free: buf.Release}
}
