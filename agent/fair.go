package agent

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/morainefs/moraine"
)

// Users of one node share its arenas and its connections. Nobody reserves anything: a user alone has
// the arenas for itself. While another one waits for memory within an equal share, a user gets no memory
// above its share, and gives back the slots of committed parts.

// lentPatience is the default of Config.Patience. Nobody knows when readers give their memory back.
const lentPatience = time.Minute

// count adds n bytes to the slots of a user. The caller holds the mutex.
func (p *pool) count(uid uint32, n int64) {
	p.used += n
	if p.users[uid] += n; p.users[uid] == 0 {
		delete(p.users, uid)
	}
}

// share is how many bytes each user may have while others wait: the same for each that has slots or
// waits. The caller holds the mutex.
func (p *pool) share() int64 {
	n := len(p.users)
	for uid := range p.waiting {
		if p.users[uid] == 0 {
			n++
		}
	}
	return p.limit / int64(max(n, 1))
}

// yields reports whether a user may not have n bytes more now: it would be above its share, and another
// one waits for memory within its own. Nobody yields to a user who yields, so that one goes on. The
// caller holds the mutex.
func (p *pool) yields(uid uint32, n int64) bool {
	share := p.share()
	if p.users[uid]+n <= share {
		return false
	}
	for other := range p.waiting {
		if other != uid && p.entitled(other, share) {
			return true
		}
	}
	return false
}

// entitled reports whether a user waits for memory with which it would not be above its share. The
// caller holds the mutex.
func (p *pool) entitled(uid uint32, share int64) bool {
	waits := p.waiting[uid]
	return len(waits) > 0 && p.users[uid]+slices.Min(waits) <= share
}

// above reports whether a user has more than its share while another waits for memory within its own.
func (p *pool) above(uid, waits uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	share := p.share()
	return uid != waits && p.users[uid] > share && p.entitled(waits, share)
}

// wait notes a caller of take that waits for n bytes, until end.
func (p *pool) wait(uid uint32, n int64) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[uid] = append(p.waiting[uid], n)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		i := slices.Index(p.waiting[uid], n)
		if p.waiting[uid] = slices.Delete(p.waiting[uid], i, i+1); len(p.waiting[uid]) == 0 {
			delete(p.waiting, uid)
		}
		p.signal() // those that yielded go on
	}
}

// lend ends what take began, for a slot that a reader has until it is discarded.
func (p *pool) lend(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.lent = true
	p.lent += int64(len(s.mem))
	p.making--
	p.signal()
}

// lentRoom is the error of a caller that has waited for readers.
func (p *pool) lentRoom(w want, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &moraine.Error{Op: w.op, Kind: moraine.NoSpace, Err: fmt.Errorf(
		"no %d bytes became free in the arenas' %d: readers of files and steps have %d bytes; close what they have read, or raise --arena-memory", n, p.limit, p.lent)}
}

// errBusy is the error of a caller that does not want to wait.
func errBusy(w want) error {
	return &moraine.Error{Op: w.op, Kind: moraine.Busy,
		Err: errors.New("the arenas are full: earlier saves are still being written to the cluster, or readers have the memory")}
}

// admitConn counts a connection, unless there are too many. A user has at most as many as are free, so
// that another user always gets some. The connection of a user who may not use the agent lasts just
// long enough to say so.
func (a *Agent) admitConn(c *net.UnixConn, uid uint32) bool {
	stranger := !a.mayUse(uid)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.conns == nil:
		return false
	case !stranger:
		mine := 0
		for _, u := range a.conns {
			if u == uid {
				mine++
			}
		}
		if mine >= maxConns-(len(a.conns)-a.strangers) {
			return false
		}
	case a.strangers >= maxStrangers || c.SetDeadline(time.Now().Add(strangerPatience)) != nil:
		return false
	default:
		a.strangers++
	}
	a.conns[c] = uid
	return true
}
