package metadata

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// read serves a request from a current state. It reads again after delegations that it met.
func (l *leader) read(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	for tries := 0; ; tries++ {
		resp, met, err := readOnce(ctx, l, c)
		if err != nil || len(met) == 0 {
			return resp, err
		}
		if err := l.log.meeting(ctx, met, tries); err != nil {
			return nil, err
		}
	}
}

// readOnce reads once. The answer must not be sent if it met delegations.
func readOnce(ctx context.Context, l *leader, c *lead.Call) (*wire.MetaResponse, []kvtx.Met, error) {
	req := l.unconfined(c)
	var resp *wire.MetaResponse
	var seen kvtx.Seen
	var asOf uint64
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return nil, nil, err
	}
	err := l.Store.View(func(r kvtx.Reader, applied uint64) (err error) {
		asOf = applied
		resp, seen, err = l.Machine.ReadSeen(r, c.Caller, req, moraine.SessionID(c.Req.Session))
		return err
	})
	if err != nil || len(seen.Met) > 0 {
		return resp, seen.Met, err
	}
	if t := resp.GetTier(); t != nil {
		t.Traits, t.LedMillis = l.fleet.Traits.All(), uint64(l.Clock.Since(l.Began).Milliseconds())
		err := l.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
			t.Health, err = l.fleet.BucketStatus(r)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	err = l.leases.ResolveSeen(ctx, &seen)
	if err == nil && c.Req.LeaseEpoch != 0 && c.Req.Session != 0 && resp.Error == nil && !seen.All {
		resp.Lease = l.lease.Grant(c.Req.Session, c.Req.LeaseEpoch, &seen, asOf)
	}
	return resp, nil, err
}

// unconfined returns the request without its session if the answer is the same.
// Then this leader knows the session to be live and the caller's own, and
// neither the session nor the certificate is confined. The read then needs no
// lookup of the session's record. Any other request keeps its session, which
// the state machine checks.
func (l *leader) unconfined(c *lead.Call) *wire.MetaRequest {
	if c.Req.Session == 0 || c.Caller.Scope != "/" {
		return c.Req
	}
	ses, err := l.sessions.live(c.Req.Session)
	if err != nil || !ses.all || !ses.of(c.Caller) {
		return c.Req
	}
	return &wire.MetaRequest{Partition: c.Req.Partition, RoutingEpoch: c.Req.RoutingEpoch, Op: c.Req.Op}
}
