package disk

import (
	"container/list"
	"sync"
)

// sumCache keeps block checksums of records that are read in part, so that a random
// read costs one access of the medium instead of two. It evicts the least recently
// used.
type sumCache struct {
	limit int64

	mu    sync.Mutex // guards the fields below
	used  int64
	order *list.List // *cachedSums, the most recently used first
	byAt  map[sumKey]*list.Element
}

type sumKey struct {
	segment uint64
	off     int64
}

type cachedSums struct {
	key  sumKey
	sums []uint32
}

func newSumCache(limit int64) *sumCache {
	return &sumCache{limit: limit, order: list.New(), byAt: map[sumKey]*list.Element{}}
}

// get returns the checksums of the record at that place, or nil if they are not
// cached. The caller must not change them. A place is never reused, so cached
// checksums never become stale.
func (c *sumCache) get(at extent) []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.byAt[sumKey{at.segment, at.off}]
	if el == nil {
		return nil
	}
	c.order.MoveToFront(el)
	return el.Value.(*cachedSums).sums
}

func (c *sumCache) put(at extent, sums []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := sumKey{at.segment, at.off}
	if c.byAt[key] != nil {
		return
	}
	c.byAt[key] = c.order.PushFront(&cachedSums{key: key, sums: sums})
	c.used += cost(sums)
	for c.used > c.limit && c.order.Len() > 0 {
		last := c.order.Remove(c.order.Back()).(*cachedSums)
		delete(c.byAt, last.key)
		c.used -= cost(last.sums)
	}
}

// cost approximates the memory of an element in bytes.
func cost(sums []uint32) int64 { return int64(len(sums))*sumSize + 128 }
