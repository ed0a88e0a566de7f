package metadata

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// delegate gives a directory to a session if nobody else has cached anything of it, and reserves
// inode numbers.
func (l *leader) delegate(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	op := c.Req.GetDelegate()
	why := ""
	if op.Inode != 0 {
		why = l.lease.MayDelegate(moraine.InodeID(op.Inode), c.Req.Session, c.Req.LeaseEpoch)
	}
	req := c.Req
	if why != "" {
		req = proto.CloneOf(c.Req)
		req.GetDelegate().Inode = 0
	}
	resp, err := l.Propose(ctx, c.Caller, req)
	if r := resp.GetDelegate(); err == nil && r != nil {
		if why != "" {
			r.Why = why
		}
		if r.Delegated {
			l.Metrics.DelegationsGranted.Inc()
		}
	}
	return resp, err
}

// batch proposes a batch.
func (l *leader) batch(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	resp, err := l.Propose(ctx, c.Caller, c.Req)
	l.Metrics.BatchChanges.Add(float64(len(resp.GetBatch().GetResults())))
	return resp, err
}

// maxMeetings is how often one request may meet delegations before it fails.
const maxMeetings = 64

// meeting waits for the delegations that a request met. tries counts how often it did.
func (l *commandLog) meeting(ctx context.Context, met []kvtx.Met, tries int) error {
	if tries >= maxMeetings {
		return &moraine.Error{Op: "metadata", Ref: met[0].Dir.String(), Kind: moraine.Busy,
			Err: fmt.Errorf("the request met directories that other sessions have for themselves %d times: try again", tries)}
	}
	return l.leases.Await(ctx, met)
}
