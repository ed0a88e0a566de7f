// Package lockwait has the clients that wait for an advisory lock, during one leadership. The
// replicated state has no waiters: a client asks for the lock by a command, and if the answer names
// a lock in the way it waits here, then asks again. After a change of the leader the client waits
// at the next one.
//
// One path through it: Await gives the waiter a ticket in the queue of its inode. A change of the
// inode's locks (Observe) wakes the waiters of the inode. judge reads the state and admits, in the
// order of the queue, each waiter that no lock and no admitted waiter excludes. An admitted waiter
// keeps its ticket until the locks change, or until graceTime has passed: so two waiters do not
// race for one lock, and one that died delays nobody for long.
//
// A waiter that would wait for ever gets an answer too (deadlock.go).
package lockwait

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/locks"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxWaiters is the largest number of waiters of one session. A connection has 1,024 slots for
	// requests: the other half must stay for those that end the waits.
	MaxWaiters = 512
	// graceTime is how long a ticket stays without a request: an admitted waiter takes the lock
	// within that time, and one whose request ended asks again.
	graceTime = time.Second
)

// Queue has the waiters of one leadership.
type Queue struct {
	*lead.Term

	// judging orders the decisions. It is held across reads of the state, so that of two waiters
	// that close a circle only the second one finds it.
	judging sync.Mutex

	mu       sync.Mutex // guards the following fields, and the tickets
	of       map[moraine.InodeID][]*ticket
	sessions map[uint64]int // tickets of each session
}

// ticket is a waiter's place in the queue of an inode.
type ticket struct {
	inode    moraine.InodeID
	want     locktable.Lock
	asking   bool      // a request of the waiter is here
	admitted bool      // nothing excluded its lock when the state was last read
	left     time.Time // when its last request ended
	wake     chan struct{}
}

// New returns an empty queue for a leadership.
func New(t *lead.Term) *Queue {
	return &Queue{Term: t, of: map[moraine.InodeID][]*ticket{}, sessions: map[uint64]int{}}
}

// Await waits until nothing prevents a lock, or until the request's time is over. The answer names a
// lock that prevents it, or says that the waiter would wait for ever.
func (q *Queue) Await(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	req := c.Req.GetAwaitLock()
	inode := moraine.InodeID(req.GetInode())
	if err := q.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	if err := q.maySee(c, req); err != nil {
		return nil, err
	}
	want, err := locks.Requested(req.GetLock(), moraine.SessionID(c.Req.Session))
	if err != nil {
		return nil, err
	}
	t, err := q.enter(inode, want)
	if err != nil {
		return nil, err
	}
	defer q.leave(t)
	until := q.WaitUntil(ctx, uint64(req.WaitMillis))
	for first := true; ; first = false {
		wake, reply, err := q.judge(t, first)
		left := until.Sub(q.Clock.Now())
		if err != nil || reply.Deadlock || reply.Conflict == nil && q.isAdmitted(t) || left <= 0 {
			return &wire.MetaResponse{Result: &wire.MetaResponse_Lock{Lock: reply}}, err
		}
		// An admitted waiter before this one may have died: then nothing else wakes this one.
		if reply.Conflict == nil {
			left = min(left, graceTime)
		}
		if err := q.Term.Await(ctx, wake, left); err != nil {
			return nil, err
		}
	}
}

// maySee fails unless the caller may see the inode.
func (q *Queue) maySee(c *lead.Call, req *wire.AwaitLock) error {
	lock := &wire.FileLock{Session: c.Req.Session, Owner: req.GetLock().GetOwner(), Flock: req.GetLock().GetFlock(), Write: req.GetLock().GetWrite(),
		Start: req.GetLock().GetStart(), End: req.GetLock().GetEnd()}
	get := &wire.MetaRequest{Session: c.Req.Session, Partition: c.Req.Partition, Op: &wire.MetaRequest_GetLock{GetLock: &wire.GetLock{Inode: req.GetInode(), Lock: lock}}}
	return q.Store.View(func(r kvtx.Reader, _ uint64) error {
		resp, err := q.Machine.Read(r, c.Caller, get)
		if err == nil && resp.Error != nil {
			err = transport.ErrorFromWire(resp.Error)
		}
		return err
	})
}

// enter returns the waiter's ticket: a new one at the end, or the one of its former request.
func (q *Queue) enter(inode moraine.InodeID, want locktable.Lock) (*ticket, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep(inode)
	for _, t := range q.of[inode] {
		if !t.asking && t.want == want {
			t.asking, t.admitted = true, false
			return t, nil
		}
	}
	if q.sessions[want.Session] >= MaxWaiters {
		return nil, &moraine.Error{Op: "await lock", Ref: inode.String(), Kind: moraine.QuotaExceeded,
			Err: fmt.Errorf("%d callers of the session wait for locks, which is the limit", MaxWaiters)}
	}
	t := &ticket{inode: inode, want: want, asking: true, wake: make(chan struct{})}
	q.of[inode] = append(q.of[inode], t)
	q.sessions[want.Session]++
	return t, nil
}

// leave ends a waiter's request. Its ticket stays for a while.
func (q *Queue) leave(t *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.asking, t.left = false, q.Clock.Now()
	q.sweepAll()
}

// sweepAll removes old tickets of all inodes. The caller holds mu.
func (q *Queue) sweepAll() {
	for inode := range q.of {
		q.sweep(inode)
	}
}

// sweep removes the old tickets of an inode. The caller holds mu.
func (q *Queue) sweep(inode moraine.InodeID) {
	now := q.Clock.Now()
	q.remove(inode, func(t *ticket) bool { return !t.asking && now.Sub(t.left) >= graceTime })
}

// remove removes tickets of an inode. The caller holds mu.
func (q *Queue) remove(inode moraine.InodeID, which func(*ticket) bool) {
	left := slices.DeleteFunc(q.of[inode], func(t *ticket) bool {
		gone := which(t)
		if gone {
			if q.sessions[t.want.Session]--; q.sessions[t.want.Session] == 0 {
				delete(q.sessions, t.want.Session)
			}
		}
		return gone
	})
	if len(left) == 0 {
		delete(q.of, inode)
		return
	}
	q.of[inode] = left
}

// Observe wakes the waiters that a command concerns. It does not block.
func (q *Queue) Observe(ev *kvtx.Events) {
	if len(ev.SessionsEnded) > 0 {
		q.WakeAll()
		return
	}
	if len(ev.LocksChanged) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, inode := range ev.LocksChanged {
		q.changed(inode)
	}
}

// WakeAll wakes all waiters.
func (q *Queue) WakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for inode := range q.of {
		q.changed(inode)
	}
}

// changed wakes the waiters of an inode. An admitted waiter without a request has its lock now, or
// asks again. The caller holds mu.
func (q *Queue) changed(inode moraine.InodeID) {
	q.remove(inode, func(t *ticket) bool { return !t.asking && t.admitted })
	for _, t := range q.of[inode] {
		close(t.wake)
		t.wake = make(chan struct{})
	}
}

func (q *Queue) isAdmitted(t *ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.admitted
}

// judge admits waiters of t's inode, and answers for t. It returns the channel of the next change.
// With circle it also looks whether t would wait for ever.
func (q *Queue) judge(t *ticket, circle bool) (wake <-chan struct{}, reply *wire.LockReply, err error) {
	q.judging.Lock()
	defer q.judging.Unlock()
	q.mu.Lock()
	wake = t.wake // before the state is read: a later change fires it
	q.sweep(t.inode)
	line := slices.Clone(q.of[t.inode])
	var waiting map[locktable.Owner][]*ticket
	if circle {
		waiting = q.waiting()
	}
	q.mu.Unlock()
	reply = &wire.LockReply{}
	err = q.Store.View(func(r kvtx.Reader, _ uint64) error {
		v := q.Machine.View(r)
		have, err := locks.All(v, t.inode) // once, for all of the line
		if err != nil {
			return err
		}
		sessions := locks.NewSessions(v)
		free := map[*ticket]bool{}
		for _, other := range line {
			by, blocked, err := sessions.Conflict(have, other.want)
			if err != nil {
				return err
			}
			free[other] = !blocked
			if other == t && blocked {
				reply.Conflict = &wire.FileLock{Session: by.Session, Owner: by.ID, Flock: by.Flock, Write: by.Write, Start: by.Start, End: by.End, Pid: by.PID}
			}
		}
		if circle && !free[t] {
			g := graph{View: v, waiting: waiting}
			found, err := g.waitsForItself(t)
			reply.Deadlock = found
			return err
		}
		q.admit(line, free)
		return nil
	})
	if reply.Deadlock {
		q.mu.Lock()
		q.remove(t.inode, func(o *ticket) bool { return o == t })
		q.mu.Unlock()
	}
	return wake, reply, err
}

// admit admits, in order, the waiters whose lock is free, unless it contradicts that of one admitted
// before.
func (q *Queue) admit(line []*ticket, free map[*ticket]bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var admitted []*ticket
	for _, t := range line {
		t.admitted = t.admitted && (free[t] || !t.asking)
		if t.admitted {
			admitted = append(admitted, t)
		}
	}
	for _, t := range line {
		if t.admitted || !t.asking || !free[t] || slices.ContainsFunc(admitted, func(o *ticket) bool { return o.want.Excludes(t.want) }) {
			continue
		}
		t.admitted = true
		admitted = append(admitted, t)
		close(t.wake)
		t.wake = make(chan struct{})
	}
}
