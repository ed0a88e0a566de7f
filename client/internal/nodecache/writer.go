package nodecache

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
)

// queueLength bounds the additions that wait. Their bytes are bounded too.
const queueLength = 1024

// addition is a copy of bytes to store.
type addition struct {
	content Content
	off     int64
	bytes   []byte
}

// Add stores a copy of p, the bytes of a content from off on, some time later. The range lies
// within the content. Only whole blocks are stored. Add never waits: if the disk does not keep
// up, or the keeper has yet to make room, it drops the bytes.
func (c *Cache) Add(content Content, p []byte, off int64) {
	if c == nil || len(p) == 0 || c.paused() {
		return
	}
	if !c.enqueue(content, p, off) {
		c.metrics.NodeCacheDroppedBytes.Add(float64(len(p)))
	}
}

// enqueue puts a copy of p into the queue, if there is room.
func (c *Cache) enqueue(content Content, p []byte, off int64) bool {
	n := int64(len(p))
	if c.queued.Add(n) <= c.cfg.QueueBytes && c.budget.take(n) {
		select {
		case c.queue <- addition{content: content, off: off, bytes: bytes.Clone(p)}:
			return true
		default:
			c.budget.left.Add(n)
		}
	}
	c.queued.Add(-n)
	return false
}

// write stores additions until life ends.
func (c *Cache) write(life context.Context) {
	for {
		select {
		case <-life.Done():
			return
		case a := <-c.queue:
			c.store(a)
			c.queued.Add(-int64(len(a.bytes)))
		}
	}
}

// store writes an addition, part by part.
func (c *Cache) store(a addition) {
	for p, off := a.bytes, a.off; len(p) > 0 && !c.paused(); {
		part := a.content.part(off)
		n := min(int64(len(p)), part.end()-off)
		c.storePart(part, p[:n], off-part.begin())
		p, off = p[n:], off+n
	}
}

// storePart writes the bytes of one cache file. If the keeper has just removed the file, it
// makes the file again.
func (c *Cache) storePart(part Part, p []byte, off int64) {
	for range 2 {
		f, err := c.file(part, true)
		if err == nil {
			var n int64
			n, err = f.add(p, off)
			c.metrics.NodeCacheAddedBytes.Add(float64(n))
		}
		if err == nil {
			return
		}
		c.failed("write", part, f, err)
		if !errors.Is(err, errRemoved) {
			return
		}
	}
}

// budget is what the process may add before the keeper has counted the directory again.
type budget struct {
	most int64
	left atomic.Int64
	// spent gets a value when half is used.
	spent chan struct{}
}

func (b *budget) init(most int64) {
	b.most, b.spent = most, make(chan struct{}, 1)
	b.left.Store(most)
}

// take takes n bytes, or nothing if fewer are left.
func (b *budget) take(n int64) bool {
	left := b.left.Add(-n)
	if left < b.most/2 {
		select {
		case b.spent <- struct{}{}:
		default:
		}
	}
	if left < 0 {
		b.left.Add(n)
		return false
	}
	return true
}

// set allows n more bytes, but not more than the most.
func (b *budget) set(n int64) { b.left.Store(max(0, min(n, b.most))) }
