package session

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A program that looks up many names of one directory pays a request for each. After listAfter
// such requests the client lists the directory in the background, so that the cache answers the
// rest. Each request pays for listEach entries: a few names of a large directory cost little.
const (
	listAfter = 4
	listEach  = 64
	// listPage is the least that one request lists.
	listPage = listAfter * listEach
	// listsAtOnce bounds the directories that wait to be listed.
	listsAtOnce = 64
)

// ahead is how far the client has listed a directory ahead of the programs.
type ahead struct {
	lookups int       // requests since the lease, or since a change of the names
	listed  int       // entries in the answers
	after   string    // the last of them
	running bool      // a goroutine lists the directory
	changed time.Time // the last change of a name
}

// lister lists directories ahead. The mutex of the cache guards what it knows of each.
type lister struct {
	m *Conn
	c *cache
	// wanted are the directories to list. Nobody waits for room there.
	wanted chan moraine.InodeID
	walk   walk
}

func newLister(m *Conn) *lister {
	return &lister{m: m, c: m.cache, wanted: make(chan moraine.InodeID, listsAtOnce), walk: newWalk()}
}

// lookedUp records that the look-up of a name in a directory needed a request, and begins to list the
// directory if that pays. A directory whose names change is not listed: each change would end it.
func (a *lister) lookedUp(dir moraine.InodeID) {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.leases[uint64(dir)]
	if l == nil || l.listed {
		return
	}
	l.ahead.lookups++
	if l.ahead.running || a.mayList(l) == 0 {
		return
	}
	select {
	case a.wanted <- dir:
		l.ahead.running = true
	default: // a later look-up tries again
	}
}

// mayList returns how many more entries of a directory the look-ups have paid for. The caller holds
// the mutex.
func (a *lister) mayList(l *leased) int {
	if l.ahead.lookups < listAfter || a.c.clock.Now().Sub(l.ahead.changed) < quietTime {
		return 0
	}
	return max(0, min(l.ahead.lookups*listEach, a.c.limit/4)-l.ahead.listed)
}

// next returns the page of a directory to list next; limit 0: none, and the goroutine ends.
func (a *lister) next(dir moraine.InodeID) (after string, limit int) {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.leases[uint64(dir)]
	if l == nil || !l.ahead.running {
		return "", 0 // the lease is gone, or another one
	}
	if !l.listed && c.usable() {
		limit = a.mayList(l)
	}
	if limit == 0 {
		l.ahead.running = false
		return "", 0
	}
	return l.ahead.after, max(limit, min(listPage, c.limit/4))
}

// got records a page.
func (a *lister) got(dir moraine.InodeID, r *wire.ReadDirReply) {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.leases[uint64(dir)]
	if l == nil {
		return
	}
	if n := len(r.Entries); n > 0 && r.More {
		l.ahead.listed, l.ahead.after = l.ahead.listed+n, r.Entries[n-1].Name
		return
	}
	// The end. If a name has changed meanwhile the listing is not whole, and begins again later.
	l.ahead = ahead{running: l.ahead.running, changed: l.ahead.changed}
}

// namesChanged begins the count of look-ups again.
func (l *leased) namesChanged(now time.Time) {
	l.ahead = ahead{running: l.ahead.running, changed: now}
}

// run lists directories ahead, until ctx ends.
func (a *lister) run(ctx context.Context, run func(func())) {
	defer close(a.walk.over)
	for {
		select {
		case <-ctx.Done():
			return
		case dir := <-a.wanted:
			run(func() { a.list(ctx, dir) })
		case dirs := <-a.walk.wanted:
			run(func() { a.listNext(ctx, dirs) })
		}
	}
}

// list lists a directory as far as look-ups have paid for it.
func (a *lister) list(ctx context.Context, dir moraine.InodeID) {
	for {
		after, limit := a.next(dir)
		if limit == 0 {
			return
		}
		r, err := page(ctx, a.m, dir, after, limit)
		if err != nil {
			a.m.Log.Debug("a directory could not be listed ahead", "dir", dir, "err", err)
			a.end(dir)
			return
		}
		a.m.metrics.ListedAhead.Add(float64(len(r.Entries)))
		a.got(dir, r)
	}
}

// end ends the listing of a directory after an error: look-ups must pay for another.
func (a *lister) end(dir moraine.InodeID) {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.leases[uint64(dir)]; l != nil {
		l.ahead = ahead{changed: l.ahead.changed}
	}
}
