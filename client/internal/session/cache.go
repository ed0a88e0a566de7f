package session

import (
	"container/list"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/delegation"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// cache holds entries and attributes that the client may answer from without a request, because
// it has a cache lease on each. Its answers are exact: as of the moment of the call, whatever
// other clients do. So for everything in it:
//
//   - The lease that covers it was granted under the current standing, and the standing is trusted (leases.go).
//   - Since the client sent the read that brought it, the client has carried out no recall of it. Nor was a request of this client running or ended that may change it. events records recent changes.
//   - While a request of this client that names an inode is running, the cache answers nothing that concerns the inode (put aside). When the reply arrives, the client drops what the request changed before its caller gets the reply.
//
// Answers are shared: attributes must not be changed.
type cache struct {
	clock   clock.Clock
	metrics *metrics.Metrics
	limit   int // upper bound of items

	mu       sync.Mutex
	standing standing
	// firstStanding is below the epochs of all standings of this process.
	firstStanding uint64
	leases        map[uint64]*leased
	recent        list.List // of *leased, most recently used first
	attrs         map[uint64]cachedAttr
	items         int
	aside         map[uint64]int // number of running requests that name the inode
	// back are the leases to return. returning are the leases whose return the
	// service has not confirmed yet: the cache stores nothing under them.
	back      []uint64
	returning map[uint64]struct{}
	returns   uint64 // number of the last request that returned leases
	events    eventLog
	// hidden are the directories whose entries, and the inodes whose attributes, the desk knows better.
	hidden map[uint64]struct{}
	desk   *delegation.Desk
	loans  loans // outlives standings and leases
	// doubted gets a value when the client must begin a new standing.
	doubted chan struct{}
	copies  copies // that others keep under the leases
}

// standing is the state with the service under which all leases are valid.
type standing struct {
	session uint64
	epoch   uint64
	trusted bool
	sent    time.Time     // when the client sent the last renewal that was granted
	trust   time.Duration // for how long after sent the leases are trusted
	exact   uint64        // log index up to which the cached content is exact
	carried uint64        // number of the last recall carried out
	acked   uint64        // number of the last one that may be acknowledged (loans.due)
}

// leased is the cached content under one lease.
type leased struct {
	id      uint64
	entries map[string]uint64 // inode by name; 0: the entry does not exist
	attrs   map[uint64]struct{}
	names   []string // all entries, in order, if listed
	listed  bool
	partial []string // the beginning of a listing
	ahead   ahead
	walked  walked
	small   *small // nil: not counted
	at      *list.Element
	// recalls counts the recalls since a time. A lease that is recalled again and again is of
	// little use.
	recalls int
	since   time.Time
}

type cachedAttr struct {
	attr  *wire.Attr
	under *leased
	kept  bool // there are copies outside the cache (copies.go)
}

func newCache(limit int, clk clock.Clock, m *metrics.Metrics) *cache {
	c := &cache{clock: clk, metrics: m, limit: limit, aside: map[uint64]int{}, hidden: map[uint64]struct{}{}, doubted: make(chan struct{}, 1),
		loans:  loans{clock: clk, metrics: m},
		copies: copies{clock: clk, wake: make(chan struct{}, 1), losing: map[moraine.InodeID]int{}}}
	c.loans.mu, c.copies.mu = &c.mu, &c.mu
	c.clear()
	return c
}

// clear empties the cache. The caller holds the mutex.
func (c *cache) clear() {
	c.loseAll()
	c.leases, c.attrs, c.items = map[uint64]*leased{}, map[uint64]cachedAttr{}, 0
	c.back, c.returning = nil, map[uint64]struct{}{}
	c.recent.Init()
	c.events.all()
}

// clockSlip is how far the wall clock and the monotonic clock may diverge between two renewals.
// Beyond it the client assumes that one of them was stopped or set.
const clockSlip = 100 * time.Millisecond

// usable reports whether the leases are trusted now. While a machine sleeps its monotonic clock
// may stand still, and its wall clock may be set at any time. If the two disagree the elapsed
// time is unknown, so the client trusts nothing until the next renewal. The caller holds the
// mutex.
func (c *cache) usable() bool { return c.usableFor(0) }

// usableFor reports whether the leases are trusted now and for some time to come.
func (c *cache) usableFor(d time.Duration) bool {
	if c == nil || !c.standing.trusted {
		return false
	}
	elapsed := c.elapsed()
	return elapsed < c.standing.trust && c.standing.trust-elapsed > d
}

// elapsed is the time since the client sent the last renewal that was granted, or a very long one
// if the clocks disagree. The caller holds the mutex.
func (c *cache) elapsed() time.Duration {
	now := c.clock.Now()
	measured, shown := now.Sub(c.standing.sent), now.Round(0).Sub(c.standing.sent.Round(0))
	if (shown - measured).Abs() > clockSlip {
		return math.MaxInt64
	}
	return max(measured, shown)
}

// free reports whether an inode is not put aside. The caller holds the mutex.
func (c *cache) free(inode uint64) bool { return c.aside[inode] == 0 }

// count records a cache hit or miss.
func (c *cache) count(hit bool) bool {
	if hit {
		c.metrics.CacheHits.Inc()
	} else {
		c.metrics.CacheMisses.Inc()
	}
	return hit
}

// use returns the content under a lease, or nil if it may not be used. The caller holds the
// mutex.
func (c *cache) use(lease uint64) *leased {
	l := c.leases[lease]
	if l == nil || !c.free(lease) {
		return nil
	}
	c.recent.MoveToFront(l.at)
	return l
}

// get returns an inode's attributes, or nil if they are not cached. The caller holds the mutex.
func (c *cache) get(inode uint64) *wire.Attr {
	a, ok := c.attrs[inode]
	if !ok || !c.free(inode) || !c.shows(inode) || c.use(a.under.id) == nil {
		return nil
	}
	return a.attr
}

// find returns the inode of an entry, 0 if the entry does not exist. The caller holds the
// mutex.
func (c *cache) find(dir uint64, name string) (inode uint64, known bool) {
	l := c.use(dir)
	if l == nil || !c.shows(dir) {
		return 0, false
	}
	inode, known = l.entries[name]
	return inode, known || l.listed
}

// attr answers Conn.StatInode.
func (c *cache) attr(inode moraine.InodeID) *wire.Attr {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.usable() {
		if a := c.get(uint64(inode)); c.count(a != nil) {
			return a
		}
	}
	return nil
}

// HasNoXattrs reports whether an inode is known to have no extended attributes.
func (c *cache) hasNoXattrs(inode moraine.InodeID) bool {
	a := c.attr(inode)
	return a != nil && !a.Xattrs
}

// lookup answers Conn.LookupAt. It returns nil and true if the entry does not exist.
func (c *cache) lookup(dir moraine.InodeID, name string) (*wire.Attr, bool) {
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() {
		return nil, false
	}
	inode, known := c.find(uint64(dir), name)
	if !known || inode == 0 {
		return nil, c.count(known)
	}
	a := c.get(inode)
	return a, c.count(a != nil)
}

// page answers one page of a directory, or nil if its listing is not cached.
func (c *cache) page(dir moraine.InodeID, after string, limit int) *wire.ReadDirReply {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() {
		return nil
	}
	r := c.listing(uint64(dir), after, limit)
	c.count(r != nil)
	return r
}

func (c *cache) listing(dir uint64, after string, limit int) *wire.ReadDirReply {
	l := c.use(dir)
	if l == nil || !l.listed || !c.shows(dir) {
		return nil
	}
	first := sort.SearchStrings(l.names, after)
	if first < len(l.names) && after != "" && l.names[first] == after {
		first++
	}
	names := l.names[first:]
	r := &wire.ReadDirReply{}
	if len(names) > limit {
		names, r.More = names[:limit], true
	}
	for _, name := range names {
		a := c.get(l.entries[name])
		if a == nil {
			return nil
		}
		r.Entries = append(r.Entries, &wire.DirEntry{Name: name, Attr: a})
	}
	return r
}

// doubt ends the standing. The caller holds the mutex.
func (c *cache) doubt() {
	c.standing.trusted = false
	select {
	case c.doubted <- struct{}{}:
	default:
	}
}

// reset empties the cache after the session has ended.
func (c *cache) reset() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	c.standing = standing{}
	c.doubt()
}

// held returns the leases, in order. The caller holds the mutex.
func (c *cache) held() []uint64 {
	ids := make([]uint64, 0, len(c.leases))
	for id := range c.leases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
