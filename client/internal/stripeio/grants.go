package stripeio

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/wire"
)

// GrantKey says for which stripes a grant is valid: those of one tenant, with
// one scheme. A zero scheme means the default for the registered hosts. In a
// request for tickets a zero scheme means the scheme in the policy of dir (0:
// of the inode's directory). The pool finds that out: see effective.
type GrantKey struct {
	Tenant uint32
	Scheme moraine.Scheme
	Dir    moraine.InodeID
}

// A grant covers many stripes. Each is twice as large as the last if that was used up soon. So
// small writers leave few numbers unused, and large ones wait for few log entries.
const (
	firstGrant   = 8
	largestGrant = 256
	// largestGrantBytes bounds the chunks that a grant allows. The service bounds those of all
	// grants of a session to 256 times as much, and their number to 256.
	largestGrantBytes = 4 << 30
	// grantIdle is how long the pool keeps an unused grant.
	grantIdle = 30 * time.Second
)

// grant is a range of stripe numbers of one session, with a placement for each.
type grant struct {
	key     GrantKey
	Session *session.Session
	first   uint64
	count   uint32
	tenant  uint32
	// Guarded by the pool's mutex:
	left    []*wire.Placement // not taken yet
	open    int               // taken, and neither committed nor dropped
	retired bool              // closed to new tickets; it ends when open is 0
	avoided []moraine.DeviceID
	used    time.Time
	// asked is the intended scheme of the stripes, even if there was no room for it.
	asked    moraine.Scheme
	policies bool // directories have policies
	// capability is the permission to put chunks of its stripes.
	capability *heldCapability
}

// Promised is the number of domains whose loss the intended scheme survives.
func (g *grant) Promised() uint32 { return uint32(g.asked.M) }

// placement says where the chunks of a stripe go. Its slice is never changed.
type placement struct {
	Scheme   moraine.Scheme
	devices  []moraine.DeviceID
	protects uint32
}

// Ticket is one stripe number with its placement. One writer owns it until it
// calls Settle.
type Ticket struct {
	placement
	Grant  *grant
	stripe moraine.StripeID
}

// Parity returns how many bytes of parity n bytes of the stripe need; none without a ticket, which
// is a stripe of copies.
func (t *Ticket) Parity(n int64) int64 {
	if t == nil || t.Scheme.IsCopies() {
		return 0
	}
	k, m := int64(t.Scheme.K), int64(t.Scheme.M)
	return (n*m + k - 1) / k
}

// grantPool shares grants among the files of a client. Safe for concurrent use.
type grantPool struct {
	c *Engine
	// spawn runs fn in the background while the client lives.
	spawn func(fn func(context.Context))

	running  sync.WaitGroup
	mu       sync.Mutex
	queues   map[GrantKey]*grantQueue
	policies knownPolicies
	ended    bool
}

// grantQueue is the grants of one key.
type grantQueue struct {
	ready    []*grant      // with numbers left, in order of use
	size     uint32        // of the next fetch
	chunks   uint32        // of a stripe of the last grant; 0: none yet
	fetching chan struct{} // closed when the running fetch has ended; nil: none runs
	err      error         // error of the last fetch, for errOf
	errOf    moraine.InodeID
}

func newGrantPool(c *Engine) *grantPool {
	return &grantPool{c: c, queues: map[GrantKey]*grantQueue{}}
}

// start lets the pool work in the background until life ends.
func (p *grantPool) start(life context.Context) {
	p.spawn = func(fn func(context.Context)) { p.running.Go(func() { fn(life) }) }
}

// wait returns when all background work has ended. It prevents new work.
func (p *grantPool) wait() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.running.Wait()
}

// background runs fn unless the pool has ended. The caller holds the mutex.
func (p *grantPool) background(fn func(context.Context)) bool {
	if p.ended {
		return false
	}
	p.spawn(fn)
	return true
}

// Take returns the next stripe number for content of inode, and fetches a grant
// if none has numbers left. The caller must call Settle on the ticket.
func (p *grantPool) Take(ctx context.Context, asked GrantKey, inode moraine.InodeID) (*Ticket, error) {
	avoid := p.c.health.all()
	for {
		// Each round computes the key again, because the grant of the last round may have
		// brought a new policy.
		key, err := p.effective(ctx, asked, inode)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		q := p.queue(key)
		if t := p.next(q); t != nil {
			if len(q.ready) == 0 || (len(q.ready) == 1 && uint32(len(q.ready[0].left)) < q.ready[0].count/2) {
				p.fetch(q, key, asked.Dir, inode)
			}
			p.mu.Unlock()
			p.steer(ctx, t, avoid)
			return t, nil
		}
		p.fetch(q, key, asked.Dir, inode)
		fetching := q.fetching
		p.mu.Unlock()
		if fetching == nil {
			return nil, &moraine.Error{Op: "grant", Kind: moraine.Canceled, Err: session.ErrClosed}
		}
		err = p.c.Limits.grant.Wait(ctx, func(ctx context.Context) error {
			select {
			case <-fetching:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		err = q.err
		mine := len(q.ready) == 0 && q.errOf == inode
		p.mu.Unlock()
		if err != nil && mine {
			return nil, err
		}
	}
}

func (p *grantPool) queue(key GrantKey) *grantQueue {
	q := p.queues[key]
	if q == nil {
		q = &grantQueue{size: firstGrant}
		p.queues[key] = q
	}
	return q
}

// next takes a number from the queue, or returns nil if it has none of the current session. The
// caller holds the mutex.
func (p *grantPool) next(q *grantQueue) *Ticket {
	now := p.c.clock.Now()
	for len(q.ready) > 0 {
		g := q.ready[0]
		if g.Session != p.c.meta.Current() || g.retired || len(g.left) == 0 {
			p.drop(q, g)
			continue
		}
		w := g.left[0]
		g.left = g.left[1:]
		g.open++
		g.used = now
		if len(g.left) == 0 {
			p.drop(q, g)
		}
		return &Ticket{Grant: g, stripe: moraine.StripeID(w.Stripe), placement: placementFromWire(w)}
	}
	return nil
}

// drop removes a grant from its queue. The grant ends when Settle was called
// for its open tickets. The caller holds the mutex.
func (p *grantPool) drop(q *grantQueue, g *grant) {
	q.ready = slices.DeleteFunc(q.ready, func(o *grant) bool { return o == g })
	g.retired = true
	p.endIfDone(g)
}

// endIfDone ends a retired grant without open tickets. The caller holds the mutex.
func (p *grantPool) endIfDone(g *grant) {
	if !g.retired || g.open > 0 || g.Session != p.c.meta.Current() {
		return
	}
	p.background(func(ctx context.Context) {
		_, err := p.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: g.first}}})
		if err != nil && ctx.Err() == nil && !retry.IsKind(err, moraine.SessionExpired) {
			p.c.log.Warn("a grant could not be ended", "grant", moraine.StripeID(g.first), "err", err)
		}
	})
}

// Settle records the outcome of a ticket. Chunks put without a commit are garbage, which the
// end of their grant explains. So the pool takes nothing more from that grant.
func (p *grantPool) Settle(t *Ticket, committed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Grant.open--
	if !committed {
		p.takeNoMore(t.Grant)
	}
	p.endIfDone(t.Grant)
}

// retire takes no more tickets from the grant of a ticket. Its owner calls
// Settle later.
func (p *grantPool) retire(t *Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeNoMore(t.Grant)
}

// takeNoMore removes a grant from its queue; endIfDone must follow, now or later. The caller
// holds the mutex.
func (p *grantPool) takeNoMore(g *grant) {
	g.retired = true
	q := p.queue(g.key)
	q.ready = slices.DeleteFunc(q.ready, func(o *grant) bool { return o == g })
}

// Truncate frees, in the background, the space of an aborted unlinked file. The inode goes with
// the session; if Truncate fails, so does the space.
func (p *grantPool) Truncate(inode moraine.InodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.background(func(ctx context.Context) {
		_, err := p.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{
			Inode: uint64(inode), Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE)}}})
		if err != nil && ctx.Err() == nil && !retry.IsKind(err, moraine.NotFound) {
			p.c.log.Warn("an aborted file keeps its space until the session ends", "inode", inode, "err", err)
		}
	})
}

// Ahead fetches a grant in the background if none is ready.
func (p *grantPool) Ahead(asked GrantKey, inode moraine.InodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, known := p.policies.resolve(asked, inode, p.c.clock.Now())
	if !known {
		return // Take will find out
	}
	if q := p.queue(key); len(q.ready) == 0 {
		p.fetch(q, key, asked.Dir, inode)
	}
}

// fetch begins to fetch a grant, unless one is being fetched. The caller holds the mutex.
func (p *grantPool) fetch(q *grantQueue, key GrantKey, dir, inode moraine.InodeID) {
	if q.fetching != nil {
		return
	}
	size := min(q.size, p.c.mostStripes(q.chunks))
	if !p.background(func(ctx context.Context) {
		// Shorter than the patience of its waiters, so that they get its error.
		ctx, cancel := context.WithTimeout(ctx, p.c.cfg.Patience*3/4)
		defer cancel()
		asked := GrantKey{Tenant: key.Tenant, Scheme: key.Scheme, Dir: dir}
		g, err := p.request(ctx, asked, grantPlace(asked, inode), size)
		if retry.IsKind(err, moraine.NotFound) && dir != 0 { // the directory was removed, the file is open
			g, err = p.request(ctx, asked, inode, size)
		}
		p.fetched(q, asked, inode, g, err)
	}) {
		return
	}
	q.fetching = make(chan struct{})
	q.size = min(2*q.size, largestGrant)
}

// mostStripes returns the largest grant for stripes of so many chunks.
func (e *Engine) mostStripes(chunks uint32) uint32 {
	if chunks == 0 {
		chunks = moraine.MaxChunks
	}
	return uint32(min(largestGrant, max(1, largestGrantBytes/(int64(chunks)*e.cfg.ChunkBytes))))
}

// fetched puts a fetched grant into the queue of its key, or records the error.
func (p *grantPool) fetched(q *grantQueue, asked GrantKey, inode moraine.InodeID, g *grant, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q.err, q.errOf = err, inode
	if err == nil {
		p.policies.learn(asked, inode, g, p.c.clock.Now())
		of := p.queue(g.key)
		of.chunks = uint32(g.asked.Chunks())
		of.ready = append(of.ready, g)
	}
	close(q.fetching)
	q.fetching = nil
}

// request requests a grant from the service.
func (p *grantPool) request(ctx context.Context, key GrantKey, inode moraine.InodeID, size uint32) (*grant, error) {
	avoid := p.c.health.all()
	resp, s, err := p.askGrant(ctx, key, inode, size, avoid)
	for again := 1; again < session.MaxSessions && retry.IsKind(err, moraine.SessionExpired); again++ {
		// If the ended session got a grant, that ended with it.
		resp, s, err = p.askGrant(ctx, key, inode, size, avoid)
	}
	if err != nil {
		return nil, err
	}
	r := resp.GetGrant()
	if r == nil || len(r.Placements) != int(r.Count) || r.Count == 0 {
		return nil, retry.BadReply("grant")
	}
	p.c.meta.Quotas.Store(r.Quotas)
	for i, w := range r.Placements {
		if s := wire.SchemeFromWire(w.Scheme); !s.Valid() || len(w.Devices) != s.Chunks() || w.Stripe != r.First+uint64(i) {
			return nil, retry.BadReply("grant")
		}
	}
	g := &grant{key: GrantKey{Tenant: key.Tenant, Scheme: key.Scheme}, Session: s, first: r.First, count: r.Count, tenant: r.Tenant, left: r.Placements,
		avoided: avoid, used: p.c.clock.Now(), asked: wire.SchemeFromWire(r.GetScheme()), policies: r.Policies,
		capability: &heldCapability{renewing: NewTurn(&p.c.Limits.capability)}}
	g.capability.set(p.c, s, r.Capability, r.CapabilityExpires)
	if r.ByPolicy {
		g.key.Scheme = g.asked
	}
	return g, nil
}

// askGrant first names devices to avoid. If there is no placement without them it asks again
// without that wish: a doubtful device is better than none.
func (p *grantPool) askGrant(ctx context.Context, key GrantKey, inode moraine.InodeID, size uint32,
	avoid []moraine.DeviceID) (*wire.MetaResponse, *session.Session, error) {
	ask := func(ctx context.Context, avoid []moraine.DeviceID) (*wire.MetaResponse, *session.Session, error) {
		return p.c.meta.DoIn(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{
			Inode: uint64(inode), Count: size, Scheme: wire.SchemeToWire(key.Scheme),
			ChunkLength: uint64(p.c.cfg.ChunkBytes), Avoid: wireDevices(avoid)}}})
	}
	if len(avoid) == 0 {
		return ask(ctx, nil)
	}
	short, cancel := context.WithTimeout(ctx, p.c.cfg.AttemptTimeout)
	defer cancel()
	resp, s, err := ask(short, avoid)
	if err == nil || ctx.Err() != nil || !(retry.IsTransient(err) || retry.IsKind(err, moraine.NoSpace)) {
		return resp, s, err
	}
	return ask(ctx, nil)
}

// steer changes the placement of a new ticket if it names a device to avoid. If there is no
// other, the placement stays.
func (p *grantPool) steer(ctx context.Context, t *Ticket, avoid []moraine.DeviceID) {
	hit := func(d moraine.DeviceID) bool { return slices.Contains(avoid, d) }
	if !slices.ContainsFunc(t.devices, hit) {
		return
	}
	p.mu.Lock()
	known := slices.Equal(t.Grant.avoided, avoid) // the service found nothing better then
	p.mu.Unlock()
	if known {
		return
	}
	next, err := p.place(ctx, t, t.Grant.asked, avoid, nil)
	if err == nil {
		t.placement = next
		return
	}
	p.c.log.Debug("no placement avoids all failed devices", "stripe", t.stripe, "err", err)
	p.mu.Lock()
	t.Grant.avoided = avoid
	p.mu.Unlock()
}

// place requests another placement of a ticket's stripe. With keep, which has a device or 0 for
// each chunk, scheme and kept devices stay; without it, the scheme may change. It makes one
// attempt: it returns Unavailable and NoSpace.
func (p *grantPool) place(ctx context.Context, t *Ticket, scheme moraine.Scheme, avoid, keep []moraine.DeviceID) (placement, error) {
	op := &wire.Place{Stripes: []uint64{uint64(t.stripe)}, Scheme: wire.SchemeToWire(scheme), Avoid: wireDevices(avoid),
		Keep: wireDevices(keep), ChunkLength: uint64(p.c.cfg.ChunkBytes)}
	resp, err := p.c.meta.Quick(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Place{Place: op}})
	if err != nil {
		return placement{}, err
	}
	got := resp.GetPlace().GetPlacements()
	if len(got) != 1 {
		return placement{}, retry.BadReply("place")
	}
	next := placementFromWire(got[0])
	if !next.Scheme.Valid() || len(next.devices) != next.Scheme.Chunks() || (keep != nil && next.Scheme != scheme) {
		return placement{}, retry.BadReply("place")
	}
	return next, nil
}

// tidy ends the grants that were unused for a while.
func (p *grantPool) tidy() {
	now := p.c.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, q := range p.queues {
		for _, g := range slices.Clone(q.ready) {
			if now.Sub(g.used) > grantIdle || g.Session != p.c.meta.Current() {
				p.drop(q, g)
			}
		}
		if len(q.ready) == 0 && q.fetching == nil {
			delete(p.queues, key)
		}
	}
}

// run tidies until ctx ends.
func (p *grantPool) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.c.clock.After(grantIdle / 3):
			p.tidy()
		}
	}
}
