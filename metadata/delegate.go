package metadata

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// delegator gives directories to sessions, and proposes their batches.
type delegator struct {
	*lead.Term
	lease  *leases.Table
	leases *leases.Keeper
	// outOfSpace reports whether the metadata disks are nearly full.
	outOfSpace func() bool
}

// delegate gives a directory to a session if nobody else has cached anything of it, and reserves
// inode numbers.
func (d *delegator) delegate(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	op := c.Req.GetDelegate()
	why := ""
	if op.Inode != 0 {
		if refused, err := d.named(ctx, c, op.Inode); err != nil || refused != nil {
			return refused, err
		}
		why = d.lease.MayDelegate(moraine.InodeID(op.Inode), c.Req.Session, c.Req.LeaseEpoch)
	}
	req := c.Req
	if why != "" {
		req = proto.CloneOf(c.Req)
		req.GetDelegate().Inode = 0
	}
	resp, err := d.Propose(ctx, c.Caller, req)
	if r := resp.GetDelegate(); err == nil && r != nil {
		if why != "" {
			r.Why = why
		}
		if r.Delegated {
			d.Metrics.DelegationsGranted.Inc()
		}
	}
	return resp, err
}

// named returns the answer for a directory that the session may not name; nil if it may. So a
// confined session does not learn what others do with it.
func (d *delegator) named(ctx context.Context, c *lead.Call, inode uint64) (refused *wire.MetaResponse, err error) {
	if err := d.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	err = d.Store.View(func(r kvtx.Reader, _ uint64) error {
		resp, err := d.Machine.Read(r, c.Caller, &wire.MetaRequest{Partition: c.Req.Partition, RoutingEpoch: c.Req.RoutingEpoch, Session: c.Req.Session,
			Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: inode}}})
		if err == nil && resp.Error != nil {
			refused = resp
		}
		return err
	})
	return refused, err
}

// end gives directories back. It also ends recalls of delegations that have ended before, so that
// their session is not asked for them again.
func (d *delegator) end(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	resp, err := d.Propose(ctx, c.Caller, c.Req)
	if err != nil || resp.Error != nil {
		return resp, err
	}
	var met []kvtx.Met
	for _, id := range c.Req.GetEndDelegation().Inodes {
		met = append(met, kvtx.Met{Dir: moraine.InodeID(id), Session: moraine.SessionID(c.Req.Session)})
	}
	return resp, d.leases.EndMissed(met)
}

// batch proposes a batch.
func (d *delegator) batch(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	resp, err := d.Propose(ctx, c.Caller, c.Req)
	d.Metrics.BatchChanges.Add(float64(len(resp.GetBatch().GetResults())))
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

const (
	// spaceLook is how often the leader looks whether the metadata disks are nearly full.
	spaceLook = time.Second
	// maxSaved is how many delegations it then recalls at once.
	maxSaved = 1024
)

// saveSpace recalls all delegations while the metadata disks are nearly full. What sessions have
// changed there already still applies, since its users have got answers. Further creates then
// go the plain way, and fail.
func (d *delegator) saveSpace(ctx context.Context) {
	for d.Await(ctx, nil, spaceLook) == nil {
		if !d.outOfSpace() {
			continue
		}
		var all []kvtx.Met
		err := d.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
			all, err = tree.Delegated(d.Machine.View(r), maxSaved)
			return err
		})
		if err == nil && len(all) > 0 {
			err = d.leases.Await(ctx, all)
		}
		if err != nil && ctx.Err() == nil {
			d.Log.Warn("could not recall the delegations although the metadata disks are nearly full", "err", err)
		}
	}
}
