package session

import (
	"time"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A lease that is recalled more than maxLeaseRecalls times in recallWindow is
// returned: others work there.
const (
	maxLeaseRecalls = 8
	recallWindow    = time.Second
)

// dropAttr, dropEntry and giveBack take something out. The mutex is held.
func (c *cache) dropAttr(inode uint64) {
	if a, ok := c.attrs[inode]; ok {
		delete(c.attrs, inode)
		delete(a.under.attrs, inode)
		c.items--
	}
}

func (l *leased) unlist() { l.names, l.listed, l.complete, l.partial = nil, false, false, nil }

// unorder forgets the order of the entries, and not which there are.
func (l *leased) unorder() {
	complete := l.complete || l.listed
	l.unlist()
	l.complete = complete
}

// know and forget note what this client did to an entry under an exclusive lease.
func (l *leased) know(c *cache, name string, inode uint64) {
	l.unorder()
	if _, ok := l.entries[name]; !ok {
		c.items++
	}
	l.entries[name] = inode
}

func (l *leased) forget(c *cache, name string) {
	l.unorder()
	if _, ok := l.entries[name]; ok {
		delete(l.entries, name)
		c.items--
	}
}

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
		for _, dir := range r.Holds {
			c.exclusive.wantedBack(dir)
		}
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
