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

// GrantKey says which stripes a grant is good for: those of one tenant, made by one
// scheme, where it is zero by that of the registered hosts. Of what asks for tickets a
// zero scheme means what the policy of dir says (0: that of the inode's directory), and
// the pool finds out: see effective.
type GrantKey struct {
	Tenant uint32
	Scheme moraine.Scheme
	Dir    moraine.InodeID
}

// A grant is fetched for many stripes at once, twice as many each time as long
// as the last one was used up soon, so that small writers leave few numbers
// unused and large ones wait for few entries of the log.
const (
	firstGrant   = 8
	largestGrant = 256
	// largestGrantBytes bounds the chunks that a grant allows: the service bounds those of
	// all grants of a session to 256 times as much, and their number to 256.
	largestGrantBytes = 4 << 30
	// grantIdle is how long an unused grant is kept.
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
	open    int               // taken, and neither committed nor given up
	retired bool              // no more is taken from it; it ends when open is 0
	avoided []moraine.DeviceID
	used    time.Time
	// asked is the scheme that the stripes were to have, whatever there was room for.
	asked    moraine.Scheme
	policies bool // directories have policies
	// capability is what chunks of its stripes are put with.
	capability *heldCapability
}

// Promised is how many domains the scheme that was asked for survives the loss of.
func (g *grant) Promised() uint32 { return uint32(g.asked.M) }

// placement is where the chunks of a stripe are to go. Its slice is not changed.
type placement struct {
	Scheme   moraine.Scheme
	devices  []moraine.DeviceID
	protects uint32
}

// Ticket is one stripe number with its placement, owned by one writer until it
// is settled.
type Ticket struct {
	placement
	Grant  *grant
	stripe moraine.StripeID
}

// grantPool shares grants among the files of a client. Safe for concurrent use.
type grantPool struct {
	c *Engine
	// spawn runs fn in the background, as long as the client lives.
	spawn func(fn func(context.Context))

	running  sync.WaitGroup
	mu       sync.Mutex
	queues   map[GrantKey]*grantQueue
	policies knownPolicies
	ended    bool
}

// grantQueue holds the grants of one key.
type grantQueue struct {
	ready    []*grant      // with numbers left, in order of use
	size     uint32        // of the next fetch
	chunks   uint32        // of a stripe of the last grant; 0: there was none
	fetching chan struct{} // closed when the fetch under way has ended; nil: none is
	err      error         // of the last fetch, for errOf
	errOf    moraine.InodeID
}

func newGrantPool(c *Engine) *grantPool {
	return &grantPool{c: c, queues: map[GrantKey]*grantQueue{}}
}

// start lets the pool work in the background until life ends.
func (p *grantPool) start(life context.Context) {
	p.spawn = func(fn func(context.Context)) { p.running.Go(func() { fn(life) }) }
}

// wait returns when everything in the background has ended. No more is begun.
func (p *grantPool) wait() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.running.Wait()
}

// background runs fn unless the pool has ended. The mutex is held.
func (p *grantPool) background(fn func(context.Context)) bool {
	if p.ended {
		return false
	}
	p.spawn(fn)
	return true
}

// Take returns the next stripe number for content of inode, and fetches a grant
// where there is none with numbers left. The caller settles the ticket.
func (p *grantPool) Take(ctx context.Context, asked GrantKey, inode moraine.InodeID) (*Ticket, error) {
	avoid := p.c.health.all()
	for {
		// Each time anew: the grant that was waited for may have told of a policy.
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

// next takes a number from the queue; nil where it has none of the present
// session. The mutex is held.
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

// drop takes a grant out of its queue: it ends when its open tickets have been
// settled. The mutex is held.
func (p *grantPool) drop(q *grantQueue, g *grant) {
	q.ready = slices.DeleteFunc(q.ready, func(o *grant) bool { return o == g })
	g.retired = true
	p.endIfDone(g)
}

// endIfDone ends a retired grant that nothing is being put under. The mutex is
// held.
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

// Settle says what became of a ticket. Chunks put under one that was not
// committed are garbage that the end of its grant explains, so nothing more is
// taken from that grant.
func (p *grantPool) Settle(t *Ticket, committed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Grant.open--
	if !committed {
		p.takeNoMore(t.Grant)
	}
	p.endIfDone(t.Grant)
}

// retire has nothing more be taken from the grant of a ticket, which is settled later.
func (p *grantPool) retire(t *Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeNoMore(t.Grant)
}

// takeNoMore takes a grant out of its queue; endIfDone must follow, now or later. The mutex
// is held.
func (p *grantPool) takeNoMore(g *grant) {
	g.retired = true
	q := p.queue(g.key)
	q.ready = slices.DeleteFunc(q.ready, func(o *grant) bool { return o == g })
}

// Truncate gives back, in the background, the space of an unlinked file that
// was aborted; the inode goes with the session. If it fails that space goes then
// too.
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

// Ahead fetches a grant in the background where none is ready.
func (p *grantPool) Ahead(asked GrantKey, inode moraine.InodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, known := p.policies.resolve(asked, inode, p.c.clock.Now())
	if !known {
		return // whoever takes one asks
	}
	if q := p.queue(key); len(q.ready) == 0 {
		p.fetch(q, key, asked.Dir, inode)
	}
}

// fetch begins to fetch a grant, unless one is on its way. The mutex is held.
func (p *grantPool) fetch(q *grantQueue, key GrantKey, dir, inode moraine.InodeID) {
	if q.fetching != nil {
		return
	}
	size := min(q.size, p.c.mostStripes(q.chunks))
	if !p.background(func(ctx context.Context) {
		// Less than the patience of those who wait for it, so that they learn
		// why there is none.
		ctx, cancel := context.WithTimeout(ctx, p.c.cfg.Patience*3/4)
		defer cancel()
		asked := GrantKey{Tenant: key.Tenant, Scheme: key.Scheme, Dir: dir}
		g, err := p.request(ctx, asked, grantPlace(asked, inode), size)
		if retry.IsKind(err, moraine.NotFound) && dir != 0 { // it was removed, and the file is open
			g, err = p.request(ctx, asked, inode, size)
		}
		p.fetched(q, asked, inode, g, err)
	}) {
		return
	}
	q.fetching = make(chan struct{})
	q.size = min(2*q.size, largestGrant)
}

// mostStripes returns how many stripes of so many chunks a grant may have at most.
func (e *Engine) mostStripes(chunks uint32) uint32 {
	if chunks == 0 {
		chunks = moraine.MaxChunks
	}
	return uint32(min(largestGrant, max(1, largestGrantBytes/(int64(chunks)*e.cfg.ChunkBytes))))
}

// fetched takes the result of a fetch into the queue of what it is good for.
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

// request asks the service for a grant.
func (p *grantPool) request(ctx context.Context, key GrantKey, inode moraine.InodeID, size uint32) (*grant, error) {
	avoid := p.c.health.all()
	resp, s, err := p.askGrant(ctx, key, inode, size, avoid)
	for again := 1; again < session.MaxSessions && retry.IsKind(err, moraine.SessionExpired); again++ {
		// A grant of the session that is over, if one was made, went with it.
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

// askGrant asks without the devices to avoid, where with that wish there is no
// placement: a device in doubt is better than none.
func (p *grantPool) askGrant(ctx context.Context, key GrantKey, inode moraine.InodeID, size uint32,
	avoid []moraine.DeviceID) (*wire.MetaResponse, *session.Session, error) {
	ask := func(ctx context.Context, avoid []moraine.DeviceID) (*wire.MetaResponse, *session.Session, error) {
		return p.c.meta.DoIn(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{
			Inode: uint64(p.c.meta.Place(inode)), Count: size, Scheme: wire.SchemeToWire(key.Scheme),
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

// steer changes the placement of a fresh ticket where it names a device that is
// avoided now. What cannot be placed otherwise stays where it was.
func (p *grantPool) steer(ctx context.Context, t *Ticket, avoid []moraine.DeviceID) {
	hit := func(d moraine.DeviceID) bool { return slices.Contains(avoid, d) }
	if !slices.ContainsFunc(t.devices, hit) {
		return
	}
	p.mu.Lock()
	known := slices.Equal(t.Grant.avoided, avoid) // and the service found nothing better then
	p.mu.Unlock()
	if known {
		return
	}
	next, err := p.place(ctx, t, t.Grant.asked, avoid, nil)
	if err == nil {
		t.placement = next
		return
	}
	p.c.log.Debug("no placement without the avoided devices", "stripe", t.stripe, "err", err)
	p.mu.Lock()
	t.Grant.avoided = avoid
	p.mu.Unlock()
}

// place asks for another placement of a ticket's stripe. With keep, which has a
// device or 0 for each chunk, scheme and kept devices stay; without, the scheme
// may come out another. One attempt: Unavailable and NoSpace are returned.
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

// tidy ends the grants that nobody has used for a while.
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
