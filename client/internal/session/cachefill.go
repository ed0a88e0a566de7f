package session

import (
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport/wire"
)

// asking is the state at the sending of a read that may fill the cache.
type asking struct {
	epoch uint64 // 0: the answer will not be cached
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

// filling is an answer that goes into the cache. The caller holds the mutex meanwhile.
type filling struct {
	c       *cache
	granted map[uint64]bool
	stale   map[uint64]struct{}
}

// fill caches the parts of an answer that put names, if they are leased and did not change
// since the read was sent.
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
			c.items++ // a lease counts as an item
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

// fresh reports whether something about an inode may be cached.
func (f *filling) fresh(inode uint64) bool {
	_, stale := f.stale[inode]
	return !stale && f.c.free(inode)
}

// leaseOf returns the inode whose lease covers attributes, 0 for none.
func leaseOf(a *wire.Attr) uint64 {
	return wire.LeaseOver(a.Inode, a.Parent, a.Type == wire.FileType_FILE_TYPE_DIRECTORY, a.ManyLinks)
}

func (f *filling) attr(a *wire.Attr) {
	lease := leaseOf(a)
	if !f.granted[lease] || !f.fresh(lease) || !f.fresh(a.Inode) || !f.c.shows(a.Inode) {
		return
	}
	l, old := f.c.leases[lease], f.c.attrs[a.Inode]
	if old.kept && old.under == l && proto.Equal(old.attr, a) {
		return // what it already knows, so the copies stay
	}
	f.c.dropAttr(a.Inode)
	l.attrs[a.Inode] = struct{}{}
	f.c.attrs[a.Inode] = cachedAttr{attr: a, under: l}
	f.c.items++
}

// entry caches that name in dir is what a describes, or, for nil, that it does not exist.
func (f *filling) entry(dir uint64, name string, a *wire.Attr) bool {
	if !f.granted[dir] || !f.fresh(dir) {
		return false
	}
	if !f.c.shows(dir) {
		if a != nil {
			f.attr(a)
		}
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

// page caches one page of a directory. Consecutive pages make a listing.
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
		l.partial = nil // it would evict everything else
		return
	}
	for _, e := range r.Entries {
		f.entry(dir, e.Name, e.Attr)
	}
	if l.partial == nil || !f.c.shows(dir) {
		l.partial = nil
		return
	}
	for _, e := range r.Entries {
		l.partial = append(l.partial, e.Name)
	}
	if !r.More {
		l.names, l.listed, l.partial = l.partial, true, nil
	}
}
