package metadata

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/place"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/transport/wire"
)

// maxPlace bounds the stripes that one request places.
const maxPlace = 1024

// grant reserves stripe numbers in the state and chooses where each stripe goes. The reservation is
// the only entry: a retried request finds the same numbers, and gets placements as of now.
func (l *leader) grant(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := c.Req.GetGrant()
	if asked.Count == 0 || asked.Count > maxPlace {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request is for %d stripes, but must be for 1 to %d", asked.Count, maxPlace)}
	}
	policy, some, err := l.policyScheme(c, moraine.InodeID(asked.Inode))
	if err != nil {
		return nil, err
	}
	scheme := asked.Scheme
	if scheme == nil {
		scheme = policy
	}
	v := l.fleet.Topology.View()
	want, err := v.Request(scheme, asked.ChunkLength, asked.Avoid)
	if err != nil {
		return nil, err
	}
	want.MinProtection = l.cfg.MinProtection
	// Do not spend an entry on a stripe that cannot be placed.
	if _, err := place.Place(v.Place, want); err != nil {
		return nil, err
	}
	// The grant's record limits what its capability permits.
	req := proto.CloneOf(c.Req)
	req.GetGrant().Scheme = wire.SchemeToWire(want.Scheme)
	req.GetGrant().ChunkLength = cmp.Or(asked.ChunkLength, moraine.MaxChunkSize)
	resp, err := l.Propose(ctx, c.Caller, req)
	if err != nil || resp.GetError() != nil {
		return resp, err
	}
	reply := resp.GetGrant()
	reply.Scheme = wire.SchemeToWire(want.Scheme)
	reply.Policies, reply.ByPolicy = some, asked.Scheme == nil && policy != nil
	reply.Placements = make([]*wire.Placement, 0, reply.Count)
	for i := range uint64(reply.Count) {
		want.Stripe = moraine.StripeID(reply.First + i)
		p, err := place.Place(v.Place, want)
		if err != nil {
			return nil, err
		}
		reply.Placements = append(reply.Placements, placementToWire(want.Stripe, p))
	}
	reply.Capability, reply.CapabilityExpires, err = l.permits.permitWrites(c, reply.First)
	return resp, err
}

// policyScheme returns the scheme that a directory's policy sets for new
// stripes. It is nil if the policy sets none, or if the caller may not name the
// directory. some reports whether any directory has a policy. Like a placement
// this is advice, so a slightly old state is good enough.
func (l *leader) policyScheme(c *lead.Call, at moraine.InodeID) (scheme *wire.Scheme, some bool, err error) {
	err = l.Store.View(func(r kvtx.Reader, _ uint64) error {
		n, err := kvtx.ReadCounters(l.Machine.View(r))
		if some = n.Policies > 0; !some || at == 0 || err != nil {
			return err
		}
		s, err := names.PolicySchemeFor(l.Machine.View(r), c.Caller, moraine.SessionID(c.Req.Session), at)
		if s.K > 0 {
			scheme = wire.SchemeToWire(s)
		}
		return err
	})
	return scheme, some, err
}

// place chooses again where granted stripes go. It records nothing: the commit determines a
// stripe's devices.
func (l *leader) place(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := c.Req.GetPlace()
	switch {
	case len(asked.Stripes) == 0 || len(asked.Stripes) > maxPlace:
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request places %d stripes, but must place 1 to %d", len(asked.Stripes), maxPlace)}
	case len(asked.Keep) > 0 && len(asked.Stripes) != 1:
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("devices to keep need exactly one stripe, not %d", len(asked.Stripes))}
	}
	v := l.fleet.Topology.View()
	want, err := v.Request(asked.Scheme, asked.ChunkLength, asked.Avoid)
	if err != nil {
		return nil, err
	}
	want.MinProtection = l.cfg.MinProtection
	if len(asked.Keep) > 0 {
		want.Keep = fleet.DeviceIDs(asked.Keep)
	}
	reply := &wire.PlaceReply{Placements: make([]*wire.Placement, 0, len(asked.Stripes))}
	for _, id := range asked.Stripes {
		want.Stripe = moraine.StripeID(id)
		p, err := place.Place(v.Place, want)
		if err != nil {
			return nil, err
		}
		reply.Placements = append(reply.Placements, placementToWire(want.Stripe, p))
	}
	if asked.Capability {
		if err := l.Store.ReadBarrier(ctx); err != nil {
			return nil, err
		}
		if reply.Capability, reply.CapabilityExpires, err = l.permits.permitWrites(c, asked.Stripes[0]); err != nil {
			return nil, err
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Place{Place: reply}}, nil
}

func placementToWire(stripe moraine.StripeID, p place.Placement) *wire.Placement {
	w := &wire.Placement{
		Stripe: uint64(stripe), Scheme: wire.SchemeToWire(p.Scheme), Protects: uint32(p.Protects),
		Devices: make([]uint32, len(p.Devices)),
	}
	for i, d := range p.Devices {
		w.Devices[i] = uint32(d)
	}
	return w
}
