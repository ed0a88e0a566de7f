package session

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

// copies are what somebody outside the client keeps of the content of files, under the client's
// leases: the kernel keeps pages and attributes of the files of a mount. A copy is valid as long
// as the cache holds the attributes of its inode and the standing is trusted. When that ends, for
// whatever reason, the inode is lost: the owner of the copies drops what it has of the inode. The
// client acknowledges a recall, returns a lease and begins a standing only after that.
//
// The mutex of the cache guards the fields.
type copies struct {
	mu    *sync.Mutex
	clock clock.Clock
	// drop returns when no copy of the inodes is left, or ctx has ended. nil: nobody keeps copies.
	drop func(ctx context.Context, inodes []moraine.InodeID)
	kept int // how many cached attributes have copies
	// lost are the inodes for the next call of drop, and dropping counts the running calls.
	lost     []moraine.InodeID
	dropping int
	// losing counts by inode how often it is lost and not dropped yet. Nobody may make copies then:
	// the drop that comes would not know of them.
	losing map[moraine.InodeID]int
	idle   chan struct{} // closed when no inode is lost; nil while nobody waits for that
	wake   chan struct{} // gets a value when dropEach has work
}

const (
	// trustCheck is how often the client looks whether copies may still be trusted.
	trustCheck = 250 * time.Millisecond
	// dropPatience is how long the client waits for copies to be dropped. After that it doubts its
	// standing.
	dropPatience = time.Second
)

// Kept describes an inode of which the caller may keep copies.
type Kept struct {
	Generation moraine.Generation
	// Trust is how long the leases are trusted if no server renews them.
	Trust time.Duration
}

// OnLost sets who keeps copies. drop is called in goroutines of its own. It returns when no copy
// of the inodes is left, or ctx has ended.
func (m *Conn) OnLost(drop func(ctx context.Context, inodes []moraine.InodeID)) {
	if m.cache == nil {
		return
	}
	m.cache.mu.Lock()
	defer m.cache.mu.Unlock()
	m.cache.copies.drop = drop
	m.cache.copies.signal()
}

// Leases reports whether the service grants leases to the client.
func (m *Conn) Leases() bool {
	s := m.Current()
	return m.cache != nil && s != nil && s.leases
}

// Keep permits copies of an inode's content and attributes from now until drop is called for it.
// It returns false if no lease covers the inode now.
func (m *Conn) Keep(inode moraine.InodeID) (Kept, bool) {
	c := m.cache
	if c == nil {
		return Kept{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.copies.drop == nil || c.copies.losing[inode] > 0 || !c.usable() || c.get(uint64(inode)) == nil {
		return Kept{}, false
	}
	a := c.attrs[uint64(inode)]
	if !a.kept {
		a.kept = true
		c.attrs[uint64(inode)] = a
		if c.copies.kept++; c.copies.kept == 1 {
			c.copies.signal() // dropEach begins to look at the clock
		}
	}
	return Kept{moraine.Generation(a.attr.Generation), c.standing.trust - c.elapsed()}, true
}

// AwaitDropped waits until no copy is left of what was lost before, at most dropPatience.
func (m *Conn) AwaitDropped(ctx context.Context) bool {
	return m.cache == nil || m.cache.copies.awaitDropped(ctx)
}

func (k *copies) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// lose loses an inode if there are copies. The caller holds the mutex.
func (c *cache) lose(inode uint64) {
	a, ok := c.attrs[inode]
	if !ok || !a.kept {
		return
	}
	a.kept = false
	c.attrs[inode] = a
	c.copies.kept--
	c.copies.lost = append(c.copies.lost, moraine.InodeID(inode))
	c.copies.losing[moraine.InodeID(inode)]++
	c.copies.signal()
}

// loseAll loses all inodes. The caller holds the mutex.
func (c *cache) loseAll() {
	if c.copies.kept == 0 {
		return
	}
	for inode := range c.attrs {
		c.lose(inode)
	}
}

// allDropped reports whether no copy is left of what was lost. The caller holds the mutex.
func (k *copies) allDropped() bool { return k.dropping == 0 && len(k.lost) == 0 }

// awaitDropped returns false if copies are left after dropPatience.
func (k *copies) awaitDropped(ctx context.Context) bool {
	k.mu.Lock()
	if k.allDropped() {
		k.mu.Unlock()
		return true
	}
	if k.idle == nil {
		k.idle = make(chan struct{})
	}
	idle := k.idle
	k.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
	case <-k.clock.After(dropPatience):
	}
	return false
}

// dropEach gives lost inodes to the owner of the copies, until ctx ends.
func (c *cache) dropEach(ctx context.Context, run func(func())) {
	for {
		var look <-chan time.Time
		c.mu.Lock()
		if c.copies.kept > 0 {
			look = c.clock.After(trustCheck)
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-c.copies.wake:
		case <-look:
		}
		c.mu.Lock()
		if !c.usable() {
			c.loseAll()
		}
		lost, drop := c.copies.lost, c.copies.drop
		if drop != nil && len(lost) > 0 { // those of an earlier process wait for the owner of the copies
			c.copies.lost = nil
			c.copies.dropping++
			run(func() {
				drop(ctx, lost)
				c.copies.dropped(lost)
			})
		}
		c.mu.Unlock()
	}
}

// dropped ends a call of drop.
func (k *copies) dropped(inodes []moraine.InodeID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, inode := range inodes {
		if k.losing[inode]--; k.losing[inode] == 0 {
			delete(k.losing, inode)
		}
	}
	if k.dropping--; k.allDropped() && k.idle != nil {
		close(k.idle)
		k.idle = nil
	}
}
