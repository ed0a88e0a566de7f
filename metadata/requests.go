package metadata

import (
	"context"

	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// command proposes what the leader itself decides; a failure that the state
// machine answers is an error.
func (l *leader) command(ctx context.Context, cmd *statepb.Command) (*wire.MetaResponse, error) {
	res, err := l.applied(ctx, nil, l.own(cmd))
	if err != nil {
		return nil, err
	}
	if e := res.Response.GetError(); e != nil {
		return nil, transport.ErrorFromWire(e)
	}
	return res.Response, nil
}

// own makes a command that nobody asked for the leader's.
func (l *leader) own(cmd *statepb.Command) *statepb.Command {
	if cmd.Caller == nil {
		cmd.Caller = &statepb.Caller{Node: l.cfg.Node, Role: "metadata", Scope: "/"}
	}
	return cmd
}

// propose proposes a caller's request, and returns what the state machine
// answered: its failures are in the response.
func (l *leader) propose(ctx context.Context, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	cmd := &statepb.Command{Caller: caller, Op: &statepb.Command_Request{Request: req}}
	res, err := l.applied(ctx, l.done, cmd)
	if err == nil {
		err = l.resolveResult(ctx, &res)
	}
	if err == nil && req.LeaseEpoch != 0 {
		res.Response.Lease = ownChanges(req, &res)
	}
	return res.Response, err
}

// mutate serves a request that is a command as it stands.
func (l *leader) mutate(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	return l.propose(ctx, c.caller, c.req)
}

// read serves a request from a state that is current.
func (l *leader) read(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	req := l.unconfined(c)
	var resp *wire.MetaResponse
	var seen state.Seen
	var asOf uint64
	for {
		if err := l.store.ReadBarrier(ctx); err != nil {
			return nil, err
		}
		// One that begins after this has not begun yet for who reads now.
		mind := l.lease.exclusiveCount.Load() > 0
		var met state.Hold
		err := l.store.View(func(r state.Reader, applied uint64) (err error) {
			asOf = applied
			resp, seen, err = l.machine.ReadSeen(r, c.caller, req)
			if err == nil && mind {
				met, err = l.holdSeen(r, c, &seen)
			}
			return err
		})
		if err != nil {
			return resp, err
		}
		if met.Directory == 0 {
			break
		}
		if err := l.wantBack(ctx, met); err != nil {
			return nil, err
		}
	}
	if t := resp.GetTier(); t != nil {
		t.Traits, t.LedMillis = l.traits.all(), uint64(l.deps.Clock.Since(l.began).Milliseconds())
		err := l.store.View(func(r state.Reader, _ uint64) (err error) {
			t.Health, err = l.bucketStatus(r)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	err := l.resolveSeen(ctx, &seen)
	if err == nil && c.req.LeaseEpoch != 0 && c.req.Session != 0 && resp.Error == nil && !seen.All {
		resp.Lease = l.lease.grant(c.req.Session, c.req.LeaseEpoch, &seen, asOf)
	}
	return resp, err
}

// unconfined spares a read the look-up of its session's record where this
// leader knows the session to be alive, the caller's own, and confined to no
// directory, as the caller's certificate is: such a read is the same without a
// session. Any other keeps its session, which the state machine judges.
func (l *leader) unconfined(c *call) *wire.MetaRequest {
	if c.req.Session == 0 || c.caller.Scope != "/" {
		return c.req
	}
	ses, err := l.sessions.live(c.req.Session)
	if err != nil || !ses.all || !ses.of(c.caller) {
		return c.req
	}
	return &wire.MetaRequest{Partition: c.req.Partition, RoutingEpoch: c.req.RoutingEpoch, Op: c.req.Op}
}
