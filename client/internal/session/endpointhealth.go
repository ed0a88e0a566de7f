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

// A metadata server whose process or host has stopped does not break its connections. A request
// that waits for it would learn of the next leader only when its attempt times out, seconds
// later. So if an attempt has no answer for a moment, the client asks the other servers which
// one is the leader. Only a leader found in this way ends the attempt: a slow leader has no
// successor, and the client waits for it. The same holds while the client opens a session, so a
// client that starts with a dead server finds the leader as soon.

const (
	// lookAfter is how long an attempt has no answer before the client asks other servers. It
	// then asks each lookEvery, and after lookOften only each lookSeldom.
	lookAfter  = 300 * time.Millisecond
	lookEvery  = 150 * time.Millisecond
	lookOften  = 3 * time.Second
	lookSeldom = time.Second
	// lookTimeout bounds one such query.
	lookTimeout = time.Second
)

// endpointHealth tracks the running attempts.
type endpointHealth struct {
	clock   clock.Clock
	servers *servers
	ask     func(ctx context.Context, addrs []string) *wire.LeaderReply // nil: no answer
	left    func()                                                      // called when an attempt was ended

	wake chan struct{} // has a value when an attempt is due before the next look

	mu       sync.Mutex
	attempts map[*attempt]struct{}
	next     time.Time // time of the next look; zero: none, because no attempt is running
}

// attempt is one request to one server.
type attempt struct {
	addrs  []string
	due    time.Time // when the client asks other servers
	cancel context.CancelFunc
}

func newEndpointHealth(m *Conn) *endpointHealth {
	return &endpointHealth{clock: m.Clock, servers: m.servers, wake: make(chan struct{}, 1), attempts: map[*attempt]struct{}{},
		left: m.metrics.LeadersLeft.Inc,
		ask: func(ctx context.Context, addrs []string) *wire.LeaderReply {
			resp, err := m.dialer.Metadata(addrs).Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetLeader{GetLeader: &wire.GetLeader{}}})
			if err != nil {
				return nil
			}
			return resp.GetLeader()
		}}
}

// begin records an attempt whose reply the service may delay by wait. end removes it.
func (l *endpointHealth) begin(addrs []string, wait time.Duration, cancel context.CancelFunc) *attempt {
	a := &attempt{addrs: addrs, due: l.clock.Now().Add(wait + lookAfter), cancel: cancel}
	l.mu.Lock()
	l.attempts[a] = struct{}{}
	// An attempt with a long delay must not postpone the look for the others.
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

// run checks the attempts until ctx ends.
func (l *endpointHealth) run(ctx context.Context) {
	for {
		var due <-chan time.Time // never, if no attempt is running
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

// look finds a successor for the server of the longest overdue attempt, if there is one. It
// returns when to look again; 0 if no attempt is running.
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

// oldest returns the attempt that has been due longest, or is due next; nil if none is running.
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

// successor asks all servers but the one at addrs whether they are the leader. It then asks the
// server that they follow, which the list may not contain. It returns the addresses of the
// serving leader, or nil.
func (l *endpointHealth) successor(ctx context.Context, addrs []string) []string {
	others := l.servers.others(addrs)
	next, followed := l.serving(ctx, addrs, others)
	if next == nil && followed != nil &&
		!slices.ContainsFunc(others, func(o []string) bool { return slices.Equal(o, followed) }) {
		next, _ = l.serving(ctx, addrs, [][]string{followed})
	}
	return next
}

// serving asks the servers for the leader. next is one that is a serving leader; followed is
// another that one of them named. Neither is the server at addrs, whatever other addresses it
// has.
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
