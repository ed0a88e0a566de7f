package session

import (
	"container/list"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// cache holds entries and attributes that the client may answer from without a
// request, because it has a lease on each. What it answers is exact: as of the
// moment of the call, whatever other clients do. So it holds, for everything that
// it keeps:
//
//   - The lease that covers it was granted under the present standing, and the
//     standing is trusted (leases.go).
//   - No recall of it was carried out, and no request of this client that may
//     change it was under way or ended, at any time since the read was sent that
//     brought it: events remembers what happened lately.
//   - While a request of this client is under way that names an inode, nothing that
//     has to do with that inode is answered (put aside); when it is answered, what
//     it changed is dropped before its caller hears of it.
//
// Answers are shared: attributes must not be changed.
type cache struct {
	clock   clock.Clock
	metrics *metrics.Metrics
	limit   int // entries and attributes

	mu       sync.Mutex
	standing standing
	leases   map[uint64]*leased
	recent   list.List // of *leased, the one used last first
	attrs    map[uint64]cachedAttr
	items    int
	aside    map[uint64]int // inodes named by requests under way
	// back are the leases to be returned; returning those of which the service has
	// not said that it has taken them back: nothing is kept under them.
	back      []uint64
	returning map[uint64]struct{}
	returns   uint64 // number of the last request that returned some
	events    eventLog
	// exclusive are the exclusive leases, and what was made under them; nil where the
	// client asks for none.
	exclusive *exclusive
	// doubted gets a value when the standing has to begin anew.
	doubted chan struct{}
}

// standing is what the leases hang on.
type standing struct {
	session uint64
	epoch   uint64
	trusted bool
	sent    time.Time     // when the last renewal that was granted was asked for
	trust   time.Duration // for how long after it leases are trusted
	exact   uint64        // what is held is exact but for changes past this entry
	carried uint64        // number of the last recall carried out
}

// leased is what is kept under one lease.
type leased struct {
	id      uint64
	entries map[string]uint64 // inode by name; 0: there is no such entry
	attrs   map[uint64]struct{}
	names   []string // all entries, in order, where listed
	listed  bool
	// complete says that entries has all there are, though not in order: what was made
	// under an exclusive lease came to a listing.
	complete bool
	partial  []string // the beginning of a listing
	at       *list.Element
	// recalls counts those since a time: it is not worth much where it is recalled
	// again and again.
	recalls int
	since   time.Time
}

type cachedAttr struct {
	attr  *wire.Attr
	under *leased
}

func newCache(limit int, clk clock.Clock, m *metrics.Metrics) *cache {
	c := &cache{clock: clk, metrics: m, limit: limit, aside: map[uint64]int{}, doubted: make(chan struct{}, 1)}
	c.clear()
	return c
}

// clear forgets everything kept. The mutex is held.
func (c *cache) clear() {
	c.leases, c.attrs, c.items = map[uint64]*leased{}, map[uint64]cachedAttr{}, 0
	c.back, c.returning = nil, map[uint64]struct{}{}
	c.recent.Init()
	c.events.all()
}

// clockSlip is how far the wall clock and the monotonic one may come apart between
// two renewals without one of them having been stopped or set.
const clockSlip = 100 * time.Millisecond

// usable reports whether the leases are trusted now. While a machine sleeps its
// monotonic clock may stand still, and its wall clock may be set at any time: where
// the two disagree nobody can tell how much time has passed, so that nothing is
// trusted until the next renewal. The mutex is held.
func (c *cache) usable() bool {
	if c == nil || !c.standing.trusted {
		return false
	}
	now := c.clock.Now()
	measured, shown := now.Sub(c.standing.sent), now.Round(0).Sub(c.standing.sent.Round(0))
	return (shown-measured).Abs() <= clockSlip && max(measured, shown) < c.standing.trust
}

// free reports whether an inode is not put aside. The mutex is held.
func (c *cache) free(inode uint64) bool { return c.aside[inode] == 0 }

// count notes whether a question was answered here.
func (c *cache) count(hit bool) bool {
	if hit {
		c.metrics.CacheHits.Inc()
	} else {
		c.metrics.CacheMisses.Inc()
	}
	return hit
}

// use returns what is kept under a lease, nil where nothing may be used. The mutex
// is held.
func (c *cache) use(lease uint64) *leased {
	l := c.leases[lease]
	if l == nil || !c.free(lease) {
		return nil
	}
	c.recent.MoveToFront(l.at)
	return l
}

// get returns an inode's attributes, nil where they are not kept. The mutex is held.
func (c *cache) get(inode uint64) *wire.Attr {
	if m := c.exclusive.of(inode); m != nil {
		return m.Attr
	}
	a, ok := c.attrs[inode]
	if !ok || !c.free(inode) || c.use(a.under.id) == nil {
		return nil
	}
	return a.attr
}

// find returns the inode that an entry names, 0 where there is no such entry. The
// mutex is held.
func (c *cache) find(dir uint64, name string) (inode uint64, known bool) {
	if m := c.exclusive.named(dir, name); m != nil {
		return m.Attr.Inode, true
	}
	l := c.use(dir)
	if l == nil {
		return 0, false
	}
	inode, known = l.entries[name]
	return inode, known || l.listed || l.complete
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

// lookup answers Conn.LookupAt: nil and true where there is no such entry.
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

// page answers one page of a directory, nil where its listing is not kept.
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
	if l == nil || !l.listed || c.exclusive.pending(dir) {
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

// doubt ends the standing. The mutex is held.
func (c *cache) doubt() {
	c.standing.trusted = false
	select {
	case c.doubted <- struct{}{}:
	default:
	}
}

// reset forgets everything: the session is over.
func (c *cache) reset() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	c.standing = standing{}
	c.exclusive.giveAllBack()
	c.doubt()
}

// held returns the leases held, in order. The mutex is held.
func (c *cache) held() []uint64 {
	ids := make([]uint64, 0, len(c.leases))
	for id := range c.leases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
