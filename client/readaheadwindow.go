package client

import "context"

// plan records a read and begins to fetch what follows it.
func (a *readahead) plan(ctx context.Context, off, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, left := a.places.follow(off, n)
	a.runs.ended(left)
	for _, b := range a.blocks {
		if b.owner == left && left != nil || b.owner == p && b.end() <= p.from {
			a.drop(b)
		}
	}
	if p.streak < 1 || a.closed {
		return
	}
	window := min(a.share(), 1<<min(p.streak, 20))
	if a.isWide(n) {
		window = min(window, aheadOfWide)
	}
	if n, known := a.runs.left(p); known {
		window = min(window, int((n+a.block-1)/a.block))
	}
	first := p.next / a.block * a.block
	if first < p.next && a.blocks[first] == nil {
		first += a.block // this read covers the block's beginning; the next one misses
	}
	for i := range window {
		if !a.fetch(ctx, first+int64(i)*a.block, p) {
			return
		}
	}
}

// share is how many blocks each sequential reader may have.
func (a *readahead) share() int { return min(a.most, max(1, a.most/max(1, a.places.sequential()))) }

// fetch begins to fetch a block for a place, unless it is there. It returns false at the end of the
// range, or without memory. The caller holds the mutex.
func (a *readahead) fetch(ctx context.Context, off int64, p *place) bool {
	size := min(a.block, a.until-off)
	if size <= 0 {
		return false
	}
	if b := a.blocks[off]; b != nil {
		b.owner = p
		return true
	}
	if len(a.blocks) >= a.most && !a.reclaim(p) {
		return false
	}
	if !a.r.c.io.Ahead.TryAcquire(a.block) {
		return false
	}
	buf := a.r.c.io.Pool.TryGet(int(size))
	if buf == nil {
		a.r.c.io.Ahead.Release(a.block)
		return false
	}
	// The block outlives the read that began it, until Close at the latest.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b := &aheadBlock{off: off, buf: buf, cancel: cancel, ready: make(chan struct{}), users: 1, owner: p}
	a.blocks[off] = b
	a.running.Go(func() {
		defer cancel()
		b.err = a.r.read(ctx, buf.Bytes(), off)
		close(b.ready)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.letGo(b)
	})
	return true
}

// reclaim drops a block of a place other than p that has more than its share: the one that it would
// read last. It returns false if there is none. The caller holds the mutex.
func (a *readahead) reclaim(p *place) bool {
	count, last := map[*place]int{}, map[*place]*aheadBlock{}
	for _, b := range a.blocks {
		count[b.owner]++
		if l := last[b.owner]; l == nil || l.off < b.off {
			last[b.owner] = b
		}
	}
	for owner, n := range count {
		if owner != p && n > a.share() {
			a.drop(last[owner])
			return true
		}
	}
	return false
}

// drop removes a block from the window. The caller holds the mutex.
func (a *readahead) drop(b *aheadBlock) {
	if a.blocks[b.off] == b {
		delete(a.blocks, b.off)
	}
	if !b.gone {
		b.gone = true
		b.cancel()
		b.users++
		a.letGo(b)
	}
}

// letGo ends one use of a block. The caller holds the mutex.
func (a *readahead) letGo(b *aheadBlock) {
	b.users--
	if b.users == 0 && b.gone {
		b.buf.Release()
		a.r.c.io.Ahead.Release(a.block)
	}
}
