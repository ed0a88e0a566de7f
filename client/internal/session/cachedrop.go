package session

import (
	"time"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// The client returns a lease that is recalled more than maxLeaseRecalls times in recallWindow:
// other clients work there.
const (
	maxLeaseRecalls = 8
	recallWindow    = time.Second
)

// dropAttr, dropEntry and giveBack remove something. The caller holds the mutex.
func (c *cache) dropAttr(inode uint64) {
	if a, ok := c.attrs[inode]; ok {
		c.lose(inode)
		delete(c.attrs, inode)
		delete(a.under.attrs, inode)
		c.items--
	}
}

func (l *leased) unlist() {
	l.names, l.listed, l.partial = nil, false, nil
	l.walked.dirs, l.small = nil, nil
}

func (c *cache) dropEntry(l *leased, name string) {
	if _, ok := l.entries[name]; ok {
		delete(l.entries, name)
		c.items--
	}
	l.unlist()
}

// empty drops all content under a lease, but keeps the lease.
func (c *cache) empty(l *leased) {
	for inode := range l.attrs {
		c.lose(inode)
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

// drop removes what the touches name. The caller holds the mutex.
func (c *cache) drop(touches []*wire.Touch) {
	now := c.clock.Now()
	for _, t := range touches {
		c.events.add(t.Lease)
		c.events.add(t.Inode)
		c.loans.changed(t.Lease, c.leases[t.Lease] != nil, now, c.limit)
		if t.Name == "" {
			c.dropAttr(t.Inode)
			if l := c.leases[t.Inode]; l != nil && t.Gone {
				c.empty(l) // it is no longer valid that a directory is empty, or lacks a name
			}
		} else if l := c.leases[t.Lease]; l != nil {
			c.dropEntry(l, t.Name)
			l.namesChanged(now)
		}
	}
}

// recall carries out recalls that are new. The caller holds the mutex.
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
			if c.loans.due.Before(c.loans.last) {
				c.loans.due = c.loans.last
			}
			continue
		}
		c.drop(r.Touches)
		counted := map[uint64]bool{}
		for _, t := range r.Touches {
			c.loans.recalled(t, now)
			if counted[t.Lease] {
				continue
			}
			counted[t.Lease] = true
			l := c.leases[t.Lease]
			if l == nil { // a grant whose answer was not cached
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

// putAside begins a request that may change something about the inodes that it names. The
// request carries the returned epoch.
func (c *cache) putAside(req *wire.MetaRequest, session uint64) (named []uint64, epoch uint64) {
	if c == nil {
		return nil, 0
	}
	named = transport.Named(req)
	c.mu.Lock()
	defer c.mu.Unlock()
	if req.GetBatch() == nil { // the desk hid, or dropped, what a batch changes when it made the changes
		for _, inode := range named {
			c.aside[inode]++
			c.lose(inode)
		}
	}
	if c.standing.session == session {
		epoch = c.standing.epoch
	}
	return named, epoch
}

// takeUp ends what putAside began. It drops what the request changed. If the outcome is unknown
// (unsure), the service may still apply the request. The client then begins a new standing, so
// that the service recalls the change from it as from any other client. It returns what kernels
// must forget.
func (c *cache) takeUp(req *wire.MetaRequest, named []uint64, g *wire.LeaseGrant, failed, unsure bool) (o owed) {
	if c == nil {
		return owed{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, inode := range named {
		if req.GetBatch() == nil {
			if c.aside[inode]--; c.aside[inode] == 0 {
				delete(c.aside, inode)
			}
		}
		c.events.add(inode)
	}
	switch {
	case g.GetComplete():
		o = c.loans.owes(g.Touched, true, c.clock.Now())
		c.drop(g.Touched)
	case failed && !unsure: // the service changed nothing
	default:
		o = c.loans.owes(nil, false, c.clock.Now())
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
	return o
}
