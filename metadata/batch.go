package metadata

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// maxBatch bounds the requests in one Batch.
const maxBatch = 64

// batch proposes several requests of a session, in order, in one log entry.
func (l *leader) batch(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	requests := c.Req.GetBatch().GetRequests()
	if len(requests) == 0 || len(requests) > maxBatch {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the batch has %d requests, but must have 1 to %d", len(requests), maxBatch)}
	}
	reply := &wire.BatchReply{Responses: make([]*wire.MetaResponse, len(requests))}
	left := make([]int, 0, len(requests)) // requests to propose
	full := l.members.OutOfSpace()
	for i, req := range requests {
		if err := l.mayBatch(c, req); err != nil {
			return nil, err
		}
		if full && ops.Of(req).Grows {
			reply.Responses[i] = &wire.MetaResponse{Error: kvtx.WireError(outOfSpaceError())}
			continue
		}
		left = append(left, i)
	}
	for len(left) > 0 {
		cmds := make([]*statepb.Command, len(left))
		for n, i := range left {
			r := requests[i]
			cmds[n] = &statepb.Command{Caller: c.Caller, Op: &statepb.Command_Request{Request: &wire.MetaRequest{
				Partition: r.Partition, RoutingEpoch: c.Req.RoutingEpoch, Session: r.Session, Number: r.Number,
				AckedBelow: r.AckedBelow, GivenUp: r.GivenUp, LeaseEpoch: r.LeaseEpoch, Op: r.Op}}}
		}
		results, err := l.proposer.proposeAll(ctx, l.Done, cmds)
		if err != nil {
			return nil, err
		}
		var again []int
		var met record.Hold
		for n, i := range left {
			res := &results[n]
			if res.Met.Directory != 0 {
				again, met = append(again, i), res.Met
				continue
			}
			if moraine.Kind(res.Response.GetError().GetKind()) == moraine.Misrouted {
				// The routing changed meanwhile: the client gets the error, and retries.
				return nil, transport.ErrorFromWire(res.Response.Error)
			}
			if err := l.leases.ResolveResult(ctx, res); err != nil {
				return nil, err
			}
			if requests[i].LeaseEpoch != 0 {
				res.Response.Lease = leases.OwnChanges(requests[i], res)
			}
			reply.Responses[i] = res.Response
		}
		if len(again) > 0 {
			if err := l.leases.WantBack(ctx, met); err != nil {
				return nil, err
			}
		}
		left = again
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Batch{Batch: reply}}, nil
}

// mayBatch checks whether a request may be in a batch. Routing and session are those of the batch,
// which the leader has already checked.
func (l *leader) mayBatch(c *lead.Call, req *wire.MetaRequest) error {
	if o := ops.Of(req); o == nil || !o.Batched {
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("%T is not allowed in a batch", req.GetOp())}
	}
	if req.Session != c.Req.Session || req.Number == 0 || req.Partition != c.Req.Partition {
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("each request of a batch needs the batch's session and a number")}
	}
	return nil
}
