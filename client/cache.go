package client

import (
	"container/list"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
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
	metrics *Metrics
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
	partial []string // the beginning of a listing
	at      *list.Element
	// recalls counts those since a time: it is not worth much where it is recalled
	// again and again.
	recalls int
	since   time.Time
}

type cachedAttr struct {
	attr  *wire.Attr
	under *leased
}

// A lease that is recalled more than maxLeaseRecalls times in recallWindow is
// returned: others work there.
const (
	maxLeaseRecalls = 8
	recallWindow    = time.Second
)

func newCache(limit int, clk clock.Clock, m *Metrics) *cache {
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

// usable reports whether the leases are trusted now. A machine that slept has a
// clock that did not go on, and a wall clock that did: the longer time counts.
// The mutex is held.
func (c *cache) usable() bool {
	if c == nil || !c.standing.trusted {
		return false
	}
	now := c.clock.Now()
	return max(now.Sub(c.standing.sent), now.Round(0).Sub(c.standing.sent.Round(0))) < c.standing.trust
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
	a, ok := c.attrs[inode]
	if !ok || !c.free(inode) || c.use(a.under.id) == nil {
		return nil
	}
	return a.attr
}

// find returns the inode that an entry names, 0 where there is no such entry. The
// mutex is held.
func (c *cache) find(dir uint64, name string) (inode uint64, known bool) {
	l := c.use(dir)
	if l == nil {
		return 0, false
	}
	inode, known = l.entries[name]
	return inode, known || l.listed
}

// attr answers StatInode.
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

// hasNoXattrs reports whether an inode is known to have no extended attributes.
func (c *cache) hasNoXattrs(inode moraine.InodeID) bool {
	a := c.attr(inode)
	return a != nil && !a.Xattrs
}

// lookup answers LookupAt: nil and true where there is no such entry.
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
	if l == nil || !l.listed {
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

// asking is what a read that may fill the cache takes along.
type asking struct {
	epoch uint64 // 0: nothing will be kept
	event uint64
}

func (c *cache) ask() asking {
	if c == nil {
		return asking{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() {
		return asking{}
	}
	return asking{c.standing.epoch, c.events.next}
}

// filling is an answer that goes into the cache. The mutex is held meanwhile.
type filling struct {
	c       *cache
	granted map[uint64]bool
	stale   map[uint64]struct{}
}

// fill keeps of an answer what put gives, as far as it is leased and nothing
// happened to it since it was asked for.
func (c *cache) fill(t asking, g *wire.LeaseGrant, put func(*filling)) {
	if c == nil || t.epoch == 0 || g == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.Epoch != t.epoch || c.standing.epoch != t.epoch || !c.usable() {
		return
	}
	f := &filling{c: c, granted: make(map[uint64]bool, len(g.Leases))}
	for _, id := range g.Leases {
		if _, ok := c.returning[id]; ok {
			continue
		}
		f.granted[id] = true
		if c.leases[id] == nil {
			l := &leased{id: id, entries: map[string]uint64{}, attrs: map[uint64]struct{}{}}
			l.at = c.recent.PushFront(l)
			c.leases[id] = l
			c.items++ // a lease counts, too
		}
	}
	var known bool
	if f.stale, known = c.events.since(t.event); known {
		put(f)
	}
	for c.items > c.limit && c.recent.Len() > 0 {
		c.giveBack(c.recent.Back().Value.(*leased))
	}
}

// fresh reports whether what has to do with an inode may be kept.
func (f *filling) fresh(inode uint64) bool {
	_, stale := f.stale[inode]
	return !stale && f.c.free(inode)
}

// leaseOf returns the inode whose lease covers attributes, 0 for none.
func leaseOf(a *wire.Attr) uint64 {
	if a.Type == wire.FileType_FILE_TYPE_DIRECTORY || a.ManyLinks {
		return a.Inode
	}
	return a.Parent
}

func (f *filling) attr(a *wire.Attr) {
	lease := leaseOf(a)
	if !f.granted[lease] || !f.fresh(lease) || !f.fresh(a.Inode) {
		return
	}
	f.c.dropAttr(a.Inode)
	l := f.c.leases[lease]
	l.attrs[a.Inode] = struct{}{}
	f.c.attrs[a.Inode] = cachedAttr{a, l}
	f.c.items++
}

// entry keeps that name in dir is what a describes, or, for nil, nothing.
func (f *filling) entry(dir uint64, name string, a *wire.Attr) bool {
	if !f.granted[dir] || !f.fresh(dir) {
		return false
	}
	l := f.c.leases[dir]
	if _, ok := l.entries[name]; !ok {
		f.c.items++
	}
	l.entries[name] = a.GetInode()
	if a != nil {
		f.attr(a)
	}
	return true
}

// page keeps one page of a directory. Pages in order make a listing.
func (f *filling) page(dir uint64, after string, r *wire.ReadDirReply) {
	if !f.granted[dir] || !f.fresh(dir) {
		return
	}
	l := f.c.leases[dir]
	if after == "" {
		l.partial = []string{}
	} else if n := len(l.partial); n == 0 || l.partial[n-1] != after {
		l.partial = nil
	}
	if len(r.Entries) > f.c.limit/4 || len(l.partial) > f.c.limit/4 {
		l.partial = nil // it would push out everything else
		return
	}
	for _, e := range r.Entries {
		f.entry(dir, e.Name, e.Attr)
	}
	if l.partial == nil {
		return
	}
	for _, e := range r.Entries {
		l.partial = append(l.partial, e.Name)
	}
	if !r.More {
		l.names, l.listed, l.partial = l.partial, true, nil
	}
}

// dropAttr, dropEntry and giveBack take something out. The mutex is held.
func (c *cache) dropAttr(inode uint64) {
	if a, ok := c.attrs[inode]; ok {
		delete(c.attrs, inode)
		delete(a.under.attrs, inode)
		c.items--
	}
}

func (l *leased) unlist() { l.names, l.listed, l.partial = nil, false, nil }

func (c *cache) dropEntry(l *leased, name string) {
	if _, ok := l.entries[name]; ok {
		delete(l.entries, name)
		c.items--
	}
	l.unlist()
}

// empty drops all that is kept under a lease, and not the lease.
func (c *cache) empty(l *leased) {
	for inode := range l.attrs {
		delete(c.attrs, inode)
	}
	c.items -= len(l.attrs) + len(l.entries)
	clear(l.attrs)
	clear(l.entries)
	l.unlist()
}

func (c *cache) giveBack(l *leased) {
	c.empty(l)
	c.recent.Remove(l.at)
	delete(c.leases, l.id)
	c.items--
	c.returning[l.id] = struct{}{}
	c.back = append(c.back, l.id)
}

// drop carries out what touches say. The mutex is held.
func (c *cache) drop(touches []*wire.Touch) {
	for _, t := range touches {
		c.events.add(t.Lease)
		c.events.add(t.Inode)
		if t.Name == "" {
			c.dropAttr(t.Inode)
			if l := c.leases[t.Inode]; l != nil && t.Gone {
				c.empty(l) // that a directory is empty, or lacks a name, is no answer any more
			}
		} else if l := c.leases[t.Lease]; l != nil {
			c.dropEntry(l, t.Name)
		}
	}
}

// recall carries out recalls that have not been yet. The mutex is held.
func (c *cache) recall(recalls []*wire.Recall) {
	now := c.clock.Now()
	for _, r := range recalls {
		if r.Number <= c.standing.carried {
			continue
		}
		c.standing.carried = r.Number
		c.metrics.CacheRecalls.Inc()
		if r.All {
			c.clear()
			continue
		}
		c.drop(r.Touches)
		counted := map[uint64]bool{}
		for _, t := range r.Touches {
			if counted[t.Lease] {
				continue
			}
			counted[t.Lease] = true
			l := c.leases[t.Lease]
			if l == nil { // a grant whose answer was not kept
				if _, ok := c.returning[t.Lease]; !ok {
					c.returning[t.Lease] = struct{}{}
					c.back = append(c.back, t.Lease)
				}
				continue
			}
			if now.Sub(l.since) > recallWindow {
				l.recalls, l.since = 0, now
			}
			if l.recalls++; l.recalls > maxLeaseRecalls {
				c.giveBack(l)
			}
		}
	}
}

// putAside begins a request that may change what has to do with the inodes that it
// names; the epoch returned goes with it.
func (c *cache) putAside(req *wire.MetaRequest, session uint64) (named []uint64, epoch uint64) {
	if c == nil {
		return nil, 0
	}
	named = transport.Named(req)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, inode := range named {
		c.aside[inode]++
	}
	if c.standing.session == session {
		epoch = c.standing.epoch
	}
	return named, epoch
}

// takeUp ends what putAside began: with what the request changed, or without
// (unsure) where nobody knows, or ever will. Then it may still be applied: the
// standing begins anew, so that it is recalled from this client as from any other.
func (c *cache) takeUp(named []uint64, g *wire.LeaseGrant, failed, unsure bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, inode := range named {
		if c.aside[inode]--; c.aside[inode] == 0 {
			delete(c.aside, inode)
		}
		c.events.add(inode)
	}
	switch {
	case g.GetTold():
		c.drop(g.Touched)
	case failed && !unsure: // nothing was changed
	default:
		for _, inode := range named {
			c.dropAttr(inode)
			if l := c.leases[inode]; l != nil {
				c.empty(l)
			}
		}
	}
	if failed && unsure {
		c.doubt()
	}
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
	c.doubt()
}

// eventLog remembers to which inodes something happened lately.
type eventLog struct {
	next  uint64 // number of the next event
	floor uint64 // events before it are forgotten
	ring  [4096]uint64
}

func (e *eventLog) add(inode uint64) {
	e.ring[e.next%uint64(len(e.ring))] = inode
	e.next++
	if e.next-e.floor > uint64(len(e.ring)) {
		e.floor = e.next - uint64(len(e.ring))
	}
}

// all notes that something happened to everything.
func (e *eventLog) all() { e.next++; e.floor = e.next }

// since returns what happened from an event on; false where that is not known.
func (e *eventLog) since(event uint64) (map[uint64]struct{}, bool) {
	if event < e.floor {
		return nil, false
	}
	var inodes map[uint64]struct{}
	for n := event; n < e.next; n++ {
		if inodes == nil {
			inodes = map[uint64]struct{}{}
		}
		inodes[e.ring[n%uint64(len(e.ring))]] = struct{}{}
	}
	return inodes, true
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
