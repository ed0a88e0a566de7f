package session

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// getting is a running request for an exclusive lease.
type getting struct {
	done   chan struct{}
	voided bool // the service recalled it before the reply arrived
}

type tries struct {
	count int
	since time.Time
}

// numberRange is a range of inode numbers that the service gave the session.
type numberRange struct {
	session     *Session
	first       uint64
	next, count uint32
	open        int // numbers taken, without an answer for their files
}

// tryHold counts a file created in a directory without a lease. The caller holds the mutex.
func (e *exclusive) tryHold(dir uint64, h *hold, now time.Time) localCreate {
	if h != nil || !e.cache.usable() || now.Before(e.pause[dir]) || len(e.holds) >= maxHolds {
		return localNo
	}
	t := e.tries[dir]
	if now.Sub(t.since) > holdWindow {
		t = tries{since: now}
		if len(e.tries) > 1024 { // forget old ones; active directories return soon
			clear(e.tries)
			clear(e.pause)
		}
	}
	t.count++
	e.tries[dir] = t
	if t.count < holdAfter {
		return localNo
	}
	return localHold
}

// number returns a range with a free number, or nil. The caller holds the mutex.
func (e *exclusive) number(s *Session) *numberRange {
	for _, r := range e.ranges {
		if r.session == s && r.next < r.count {
			return r
		}
	}
	return nil
}

// spent returns the used-up ranges. The client keeps them until the service knows (forget),
// because it bounds the ranges of a session. The caller holds the mutex.
func (e *exclusive) spent(s *Session) (firsts []uint64) {
	for _, r := range e.ranges {
		if r.session == s && r.next == r.count && r.open == 0 {
			firsts = append(firsts, r.first)
		}
	}
	return firsts
}

// forget removes the ranges that the service knows are used up, and those of ended sessions.
// The caller holds the mutex.
func (e *exclusive) forget(s *Session, firsts []uint64) {
	e.ranges = slices.DeleteFunc(e.ranges, func(r *numberRange) bool {
		return r.session != s || slices.Contains(firsts, r.first)
	})
}

// get requests the exclusive lease on a directory, and inode numbers if there are none. It
// returns whether another try is useful.
func (e *exclusive) get(ctx context.Context, dir uint64) bool {
	e.cache.mu.Lock()
	if g := e.getting[dir]; g != nil {
		e.cache.mu.Unlock()
		select {
		case <-g.done:
			return true
		case <-ctx.Done():
			return false
		}
	}
	g := &getting{done: make(chan struct{})}
	e.getting[dir] = g
	epoch, s := e.cache.standing.epoch, e.meta.Current()
	op := &wire.Hold{Directory: dir, Done: e.spent(s)}
	if e.number(s) == nil {
		op.Numbers = numberCount
	}
	e.cache.mu.Unlock()
	resp, got, err := e.meta.DoIn(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Hold{Hold: op}})
	ok := e.got(g, op, epoch, s, got, resp.GetHold(), err)
	if ok {
		e.list(ctx, moraine.InodeID(dir))
	}
	return ok
}

// got processes the answer to a request for an exclusive lease.
func (e *exclusive) got(g *getting, op *wire.Hold, epoch uint64, asked, under *Session, r *wire.HoldReply, err error) bool {
	c, dir := e.cache, op.Directory
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(e.getting, dir)
	close(g.done)
	now := c.clock.Now()
	if err != nil || r == nil || asked != under {
		e.pause[dir] = now.Add(holdPause)
		if e.holds[dir] == nil && !retry.IsKind(err, moraine.Busy) {
			e.giveBack(e.add(dir, asked, 0, r)) // the service may have granted it all the same
		}
		return false
	}
	e.forget(under, op.Done)
	if r.Count > 0 {
		e.ranges = append(e.ranges, &numberRange{session: under, first: r.First, count: r.Count})
	}
	h := e.holds[dir]
	if h == nil {
		h = e.add(dir, under, epoch, r)
	} else { // its numbers were used up
		h.since = r.Since
	}
	if g.voided || !e.trusted(h) {
		e.giveBack(h)
		return false
	}
	return true
}

// add records an exclusive lease. The caller holds the mutex.
func (e *exclusive) add(dir uint64, s *Session, epoch uint64, r *wire.HoldReply) *hold {
	h := &hold{dir: dir, session: s, epoch: epoch, used: e.cache.clock.Now(), names: map[string]*Made{},
		squash: r.GetSquash(), tenant: r.GetDirectory().GetTenant(), parent: r.GetDirectory().GetParent(), since: r.GetSince()}
	e.holds[dir] = h
	return h
}

// list reads the names in a directory, if there are not too many.
func (e *exclusive) list(ctx context.Context, dir moraine.InodeID) {
	after := ""
	for range maxHoldPages {
		page, err := e.meta.ReadDirPage(ctx, dir, after, 0)
		if err != nil || !page.More || len(page.Entries) == 0 {
			return
		}
		after = page.Entries[len(page.Entries)-1].Name
	}
}
