package session

import "github.com/morainefs/moraine/transport/wire"

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
	return wire.LeaseOver(a.Inode, a.Parent, a.Type == wire.FileType_FILE_TYPE_DIRECTORY, a.ManyLinks)
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
