package stripeio

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// permit is the term of capabilities, and the session that may use them.
type permit struct {
	session *session.Session
	expires int64     // wall clock, seconds; 0: there are none
	renew   time.Time // when half of their term has passed
}

func newPermit(c *Engine, s *session.Session, expires int64) permit {
	now := c.clock.Now()
	return permit{session: s, expires: expires, renew: now.Add(max(0, time.Unix(expires, 0).Sub(now)/2))}
}

// good reports whether the capabilities belong to the current session, and half of their term
// is left.
func (p *permit) good(c *Engine) bool {
	return p.session == c.meta.Current() && c.clock.Now().Before(p.renew)
}

// giveCapabilities assigns the capabilities of a page of extents to the stripes and objects
// that they cover.
func giveCapabilities(r *wire.ExtentsReply, stripes map[uint64]*Record, objects map[uint64]*objectRead) error {
	for _, b := range r.GetCapabilities() {
		claims, err := capability.Parse(b)
		if err != nil {
			return err
		}
		for _, o := range claims.Objects {
			if o := objects[o.Object]; o != nil {
				o.capability = b
			}
		}
		for _, s := range stripes {
			if s.capability == nil && capability.CoversPart(claims, uint64(s.ID)) {
				s.capability = b
			}
		}
	}
	return nil
}

// renewed returns an extent of a job's file with a capability that has half of its term left.
// Work that waits for its turn may last longer than one term. It returns the extent unchanged
// if the file no longer has the stripe there.
func (w *rewriter) renewed(ctx context.Context, e Located) (Located, error) {
	if e.Bytes != nil || e.Record.permit.expires == 0 || e.Record.permit.good(w.Engine) {
		return e, nil
	}
	if s := w.fresh[e.Stripe]; s != nil && s.permit.good(w.Engine) {
		e.Record = s
		return e, nil
	}
	p, _, err := w.Engine.pageAt(ctx, &wire.GetExtents{Inode: e.Record.inode, Offset: uint64(e.Offset), Limit: extentPage, Job: w.job.GetId()})
	if err != nil && !retry.IsKind(err, moraine.NotFound) {
		return e, err
	}
	w.fresh = make(map[moraine.StripeID]*Record, len(p.extents))
	for _, n := range p.extents {
		if n.Record != nil {
			w.fresh[n.Stripe] = n.Record
		}
	}
	if s := w.fresh[e.Stripe]; s != nil {
		e.Record = s
	}
	return e, nil
}

// heldCapability is the capability to write the stripes of a grant.
type heldCapability struct {
	renewing Turn // locked during a renewal

	mu     sync.Mutex // guards the fields below
	bytes  []byte
	permit permit
}

// get returns the capability, and whether it needs renewal.
func (h *heldCapability) get(c *Engine) (b []byte, old bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bytes, !c.clock.Now().Before(h.permit.renew)
}

func (h *heldCapability) set(c *Engine, s *session.Session, b []byte, expires int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes, h.permit = b, newPermit(c, s, expires)
}

// refused makes the next get report that a renewal is needed.
func (h *heldCapability) refused() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.permit.renew = time.Time{}
}

// capability returns the capability for puts of a grant's stripes, renewed if half of its term
// has passed. If the renewal fails, it returns the old one, which is used as long as it is
// valid.
func (p *grantPool) capability(ctx context.Context, g *grant) []byte {
	b, old := g.capability.get(p.c)
	if !old || g.Session != p.c.meta.Current() {
		return b // nothing of an ended session can be renewed
	}
	if err := g.capability.renewing.Lock(ctx); err != nil {
		return b
	}
	defer g.capability.renewing.Unlock()
	if b, old = g.capability.get(p.c); !old { // another caller renewed it meanwhile
		return b
	}
	resp, err := p.c.meta.Quick(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Place{Place: &wire.Place{
		Stripes: []uint64{g.first}, Scheme: wire.SchemeToWire(g.asked), ChunkLength: uint64(p.c.cfg.ChunkBytes), Capability: true}}})
	if err == nil && len(resp.GetPlace().GetCapability()) == 0 {
		err = retry.BadReply("place")
	}
	if err != nil {
		p.c.log.Debug("the capability of a grant could not be renewed", "grant", moraine.StripeID(g.first), "err", err)
		return b
	}
	g.capability.set(p.c, g.Session, resp.GetPlace().Capability, resp.GetPlace().CapabilityExpires)
	b, _ = g.capability.get(p.c)
	return b
}
