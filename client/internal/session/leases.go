package session

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// leaseRenewal is how often the client renews leases, and how long an attempt may take.
	leaseRenewal = time.Second
	// recallWait is how long the service delays the answer to a poll for recalls.
	recallWait = 20 * time.Second
	// leasePause is the first pause after a failure; it doubles up to leaseRenewal.
	leasePause = 10 * time.Millisecond
)

// keepLeases keeps a standing with the service under which the cache is usable, until ctx ends.
func (m *Conn) keepLeases(ctx context.Context) {
	k := &leaseKeeper{cache: m.cache, meta: m}
	pause := leasePause
	for ctx.Err() == nil {
		s := m.Current()
		began := k.begin(ctx, s)
		if began {
			pause = leasePause
			k.hold(ctx, s)
			continue
		}
		if !s.leases {
			pause = leaseRenewal
		}
		select {
		case <-ctx.Done():
		case <-m.Clock.After(pause):
		}
		pause = min(2*pause, leaseRenewal)
	}
}

// leaseKeeper sends the requests about the cache's standing.
type leaseKeeper struct {
	cache *cache
	meta  *Conn
}

// ask makes one attempt. If a server does not answer the client tries another one next, and it
// leaves one that hangs as soon as another leads. This matters to all clients: the new leader
// acknowledges no change until every holder of leases has contacted it.
func (k *leaseKeeper) ask(ctx context.Context, s *Session, req *wire.Leases, timeout time.Duration) (*wire.LeasesReply, error) {
	k.meta.metrics.LeaseRequests.Inc()
	stub, addrs := k.meta.servers.current()
	actx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a := k.meta.endpointHealth.begin(addrs, time.Duration(req.WaitMillis)*time.Millisecond, cancel)
	defer k.meta.endpointHealth.end(a)
	resp, err := stub.Do(actx, stamp(&wire.MetaRequest{Op: &wire.MetaRequest_Leases{Leases: req}}, s, 0))
	if err == nil && resp.GetLeases() == nil {
		err = retry.BadReply("leases")
	}
	if err == nil {
		return resp.GetLeases(), nil
	}
	if ctx.Err() == nil && retry.IsTransient(err) {
		k.meta.servers.failedWith(addrs, err)
	}
	return nil, err
}

// begin begins the next standing of a session. From before the request until after the answer,
// which says what to drop, the client answers nothing from the cache.
func (k *leaseKeeper) begin(ctx context.Context, s *Session) bool {
	if !s.leases {
		return false
	}
	req := k.cache.beginning(s.Id)
	if !k.cache.copies.awaitDropped(ctx) { // the service recalls nothing of an earlier standing
		return false
	}
	k.cache.loans.awaitAll(ctx) // the request ends the service's waits for this client
	sent := k.cache.clock.Now()
	r, err := k.ask(ctx, s, req, 2*leaseRenewal)
	if retry.IsKind(err, moraine.SessionExpired) {
		_, _ = k.meta.open(ctx, s) // the session's renewals log a failure of this
		return false
	}
	if err != nil || r.Ended || !r.Renewed {
		if err != nil && ctx.Err() == nil && !retry.IsTransient(err) {
			k.meta.Log.Debug("the service granted no cache leases", "session", moraine.SessionID(s.Id), "err", err)
		}
		return false
	}
	return k.cache.begun(req.Epoch, r, sent)
}

// beginning ends the current standing and returns the request that begins the next one.
func (c *cache) beginning(session uint64) *wire.Leases {
	c.mu.Lock()
	defer c.mu.Unlock()
	select { // this request answers earlier doubts
	case <-c.doubted:
	default:
	}
	if c.standing.session != session {
		c.clear()
		c.standing = standing{session: session, epoch: c.firstStanding}
	}
	st := &c.standing
	st.trusted, st.carried, st.acked = false, 0, 0
	st.epoch++
	c.desk.Doubt()
	c.loseAll()
	// Leases that were being returned are no longer held.
	c.back, c.returning = nil, map[uint64]struct{}{}
	c.events.all()
	return &wire.Leases{Epoch: st.epoch, Begin: true, Exact: st.exact, Held: c.held()}
}

// begun processes the answer. It returns false if the standing was doubted meanwhile.
func (c *cache) begun(epoch uint64, r *wire.LeasesReply, sent time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.standing.epoch != epoch || len(c.doubted) > 0 {
		return false
	}
	c.recall(r.Recalls)
	c.desk.Recall(r.Delegations)
	st := &c.standing
	st.trusted, st.sent, st.exact = true, sent, r.Exact
	st.trust = time.Duration(r.TermMillis) * time.Millisecond * 3 / 4
	return true
}

// hold renews the standing and carries out recalls until it ends.
func (k *leaseKeeper) hold(ctx context.Context, s *Session) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, work := range []func(context.Context, *Session){k.renewEach, k.pollEach} {
		wg.Go(func() {
			defer cancel()
			work(ctx, s)
		})
	}
	select {
	case <-k.cache.doubted:
	case <-ctx.Done():
	}
	cancel()
	wg.Wait()
}

// renewEach renews until the standing ends. It notices a leader that hangs.
func (k *leaseKeeper) renewEach(ctx context.Context, s *Session) {
	pause := leaseRenewal
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.cache.clock.After(pause):
		}
		req := k.cache.keeping()
		req.Renew = true
		sent := k.cache.clock.Now()
		r, err := k.ask(ctx, s, req, leaseRenewal)
		if err != nil {
			k.cache.unkept(req)
		}
		switch {
		case err == nil && !k.cache.kept(req, r, sent), retry.IsKind(err, moraine.SessionExpired):
			return
		case err == nil:
			pause = leaseRenewal
		case pause == leaseRenewal:
			pause = leasePause
		default:
			pause = min(2*pause, leaseRenewal/2)
		}
	}
}

// pollEach polls for recalls, one request after the other, until the standing ends. It notices
// a leader that died with its connections.
func (k *leaseKeeper) pollEach(ctx context.Context, s *Session) {
	failures, failing := 0, time.Time{}
	for ctx.Err() == nil {
		if !k.cache.copies.awaitDropped(ctx) {
			return // what is not acknowledged delays others: better to have no standing
		}
		if k.cache.loans.awaitDue(ctx) { // otherwise the service repeats the recalls at once
			k.meta.metrics.LoanWaits.Inc()
		}
		req := k.cache.keeping()
		if len(req.Returned) == 0 { // a returned lease is granted again only after the answer
			req.WaitMillis = uint32(recallWait.Milliseconds())
		}
		r, err := k.ask(ctx, s, req, recallWait+k.meta.attempt)
		if err != nil {
			k.cache.unkept(req)
		}
		switch {
		case err == nil && !k.cache.kept(req, r, time.Time{}), retry.IsKind(err, moraine.SessionExpired):
			return
		case err == nil:
			failures = 0
		default:
			if failures == 0 {
				failing = k.cache.clock.Now()
			}
			longest := leaseRenewal / 2
			if k.cache.clock.Since(failing) < electing { // like requests that wait for the next leader
				longest = electionPause
			}
			retry.PauseUpTo(ctx, k.cache.clock, failures, longest)
			failures++
		}
	}
}

// keeping returns a request of the current standing, with the last recall that may be
// acknowledged and the leases to return.
func (c *cache) keeping() *wire.Leases {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, st := c.clock.Now(), &c.standing
	dropped := c.copies.allDropped()
	if dropped && !c.loans.withheld(now) {
		st.acked = st.carried
	}
	req := &wire.Leases{Epoch: st.epoch, Ack: st.acked, Ending: c.desk.Ending()}
	if !dropped { // copies may show what was recalled
		return req
	}
	req.Returned, c.back = c.loans.returnable(c.back, now)
	if len(req.Returned) > 0 {
		c.returns++
		req.Returns = c.returns
	}
	return req
}

// unkept processes a request without an answer: another request returns its leases again,
// whether or not this one arrives.
func (c *cache) unkept(req *wire.Leases) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.standing.epoch == req.Epoch {
		c.back = append(c.back, req.Returned...)
	}
}

// kept processes an answer of the current standing. It returns false if the standing has ended.
// sent is when a renewal was sent.
func (c *cache) kept(req *wire.Leases, r *wire.LeasesReply, sent time.Time) bool {
	defer c.loans.forgetLent()
	return c.took(req, r, sent)
}

// took is the part of kept under the mutex.
func (c *cache) took(req *wire.Leases, r *wire.LeasesReply, sent time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.desk.Recall(r.Delegations) // they outlive standings
	if c.standing.epoch != req.Epoch {
		return false
	}
	if r.Ended {
		c.standing.trusted = false
		return false
	}
	c.recall(r.Recalls)
	for _, id := range req.Returned {
		delete(c.returning, id)
		c.events.add(id)
	}
	st := &c.standing
	st.exact = max(st.exact, r.Exact)
	if r.Renewed && !sent.IsZero() && sent.After(st.sent) {
		st.sent = sent
	}
	return true
}
