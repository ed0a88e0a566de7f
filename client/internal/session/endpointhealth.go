package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A metadata server whose process or host has stopped does not break its
// connections: a request that waits for it would learn of the next leader when its
// attempt is over, seconds later. So when an attempt has had no answer for a moment,
// the other servers are asked whether one of them serves as leader, or whom they
// follow. Only a leader that is found so ends the attempt: one that is slow has no
// successor, and is waited for. A session is opened under the same look-out: who
// begins with a server that is gone finds the leader as soon.

const (
	// lookAfter is how long an attempt has no answer before others are asked; then
	// they are asked each lookEvery, after lookOften only each lookSeldom.
	lookAfter  = 300 * time.Millisecond
	lookEvery  = 150 * time.Millisecond
	lookOften  = 3 * time.Second
	lookSeldom = time.Second
	// lookTimeout bounds one such question.
	lookTimeout = time.Second
)

// endpointHealth knows the attempts that are under way.
type endpointHealth struct {
	clock   clock.Clock
	servers *servers
	ask     func(ctx context.Context, addrs []string) *wire.LeaderReply // nil: no answer
	left    func()                                                      // an attempt was ended

	wake chan struct{} // has one when an attempt is due before the next look

	mu       sync.Mutex
	attempts map[*attempt]struct{}
	next     time.Time // when the next look is; zero: none is, as no attempt is under way
}

// attempt is one request to one server.
type attempt struct {
	addrs  []string
	due    time.Time // when it is worth a look
	cancel context.CancelFunc
}

func newEndpointHealth(m *Conn) *endpointHealth {
	return &endpointHealth{clock: m.Clock, servers: m.servers, wake: make(chan struct{}, 1), attempts: map[*attempt]struct{}{},
		left: m.metrics.LeadersLeft.Inc,
		ask: func(ctx context.Context, addrs []string) *wire.LeaderReply {
			resp, err := m.dialer.Metadata(addrs).Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetLeader{GetLeader: &wire.GetLeader{}}})
			if err != nil {
				return nil // an earlier release does not know the question
			}
			return resp.GetLeader()
		}}
}

// begin notes an attempt, which the service may hold for wait before it answers.
// end forgets it.
func (l *endpointHealth) begin(addrs []string, wait time.Duration, cancel context.CancelFunc) *attempt {
	a := &attempt{addrs: addrs, due: l.clock.Now().Add(wait + lookAfter), cancel: cancel}
	l.mu.Lock()
	l.attempts[a] = struct{}{}
	// One that the service may hold for long is no reason to look late at the others.
	sooner := l.next.IsZero() || a.due.Before(l.next)
	if sooner {
		l.next = a.due
	}
	l.mu.Unlock()
	if sooner {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return a
}

func (l *endpointHealth) end(a *attempt) {
	l.mu.Lock()
	delete(l.attempts, a)
	l.mu.Unlock()
}

// run looks out until ctx ends.
func (l *endpointHealth) run(ctx context.Context) {
	for {
		var due <-chan time.Time // never, where no attempt is under way
		if wait := l.look(ctx); wait > 0 {
			due = l.clock.After(wait)
		}
		select {
		case <-l.wake:
		case <-due:
		case <-ctx.Done():
			return
		}
	}
}

// look asks about the server of the attempt that is due for longest, where one is due,
// and returns when to look again; 0 where no attempt is under way.
func (l *endpointHealth) look(ctx context.Context) time.Duration {
	oldest := l.oldest()
	if oldest == nil {
		return 0
	}
	overdue := l.clock.Now().Sub(oldest.due)
	if overdue < 0 {
		return max(-overdue, time.Millisecond)
	}
	if next := l.successor(ctx, oldest.addrs); next != nil {
		l.servers.failed(oldest.addrs, next)
		l.leave(oldest.addrs)
	}
	if overdue > lookOften {
		return lookSeldom
	}
	return lookEvery
}

// oldest returns the attempt that is due for longest, or next; nil where none is under
// way.
func (l *endpointHealth) oldest() *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var oldest *attempt
	for a := range l.attempts {
		if oldest == nil || a.due.Before(oldest.due) {
			oldest = a
		}
	}
	l.next = time.Time{}
	if oldest != nil {
		l.next = oldest.due
	}
	return oldest
}

// successor asks all servers but the one at addrs whether they serve as leader,
// and then whomever they follow, which a list of some servers may not name. It
// returns the addresses of the one that serves; nil where none does.
func (l *endpointHealth) successor(ctx context.Context, addrs []string) []string {
	others := l.servers.others(addrs)
	next, followed := l.serving(ctx, addrs, others)
	if next == nil && followed != nil &&
		!slices.ContainsFunc(others, func(o []string) bool { return slices.Equal(o, followed) }) {
		next, _ = l.serving(ctx, addrs, [][]string{followed})
	}
	return next
}

// serving asks the servers for the leader: next is one that says that it serves,
// followed another one that one of them named. Neither is the server at addrs,
// whatever other addresses it has.
func (l *endpointHealth) serving(ctx context.Context, addrs []string, servers [][]string) (next, followed []string) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, other := range servers {
		wg.Go(func() {
			r := l.ask(ctx, other)
			if slices.Equal(r.GetAddresses(), addrs) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.GetServing():
				next = other
				cancel() // the others need not answer
			case len(r.GetAddresses()) > 0:
				followed = r.Addresses
			}
		})
	}
	wg.Wait()
	return next, followed
}

// leave ends all attempts at the server at addrs.
func (l *endpointHealth) leave(addrs []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a := range l.attempts {
		if slices.Equal(a.addrs, addrs) {
			a.cancel()
			l.left()
		}
	}
}

// try makes one attempt, at the server at addrs.
func (m *Conn) try(ctx context.Context, stub transport.Metadata, addrs []string, req *wire.MetaRequest, wait time.Duration) (
	*wire.MetaResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, min(m.attempt, m.patience)+wait)
	defer cancel()
	a := m.endpointHealth.begin(addrs, wait, cancel)
	defer m.endpointHealth.end(a)
	resp, err := stub.Do(ctx, req)
	if err == nil {
		err = m.follows(resp.GetSession())
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}
