package chunkserver

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// mayInspect checks that the caller is an administrator or a server, whose business devices
// are: clients hear of them from the metadata service alone.
func (s *Server) mayInspect(ctx context.Context, op string) error {
	peer := transport.PeerFrom(ctx)
	if peer == nil || peer.Role == transport.RoleAdmin || peer.Role.Server() {
		return nil
	}
	return &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.PermissionDenied, Err: errors.New("only an administrator or a server may ask this of devices")}
}

// listChunks answers an administrator who asks what a device holds (`moraine fsck`),
// as a report would say it. It asks for no session token, as no client may.
func (s *Server) listChunks(ctx context.Context, list *wire.ListChunks) (*wire.StatDevicesReply, error) {
	const op = "chunkserver.List"
	if peer := transport.PeerFrom(ctx); peer != nil && peer.Role != transport.RoleAdmin {
		return nil, &moraine.Error{Op: op, Ref: peer.Node, Kind: moraine.PermissionDenied, Err: errors.New("only an administrator may list the chunks of a device")}
	}
	d, err := s.device(op, list.Device)
	if err != nil {
		return nil, err
	}
	if err := d.tier.Err(); err != nil {
		return nil, err // what its index says is not to be trusted any more
	}
	limit := reportSlice
	if list.Limit != 0 {
		limit = min(limit, int(list.Limit))
	}
	limit = max(limit, moraine.MaxChunks+1) // more than one stripe can have here
	headers, err := d.tier.List(ctx, moraine.ChunkID{Stripe: moraine.StripeID(list.From)}, limit)
	if err != nil {
		return nil, err
	}
	headers, to := cutSlice(headers, limit)
	listed := &wire.ListedChunks{To: uint64(to)}
	for _, h := range headers {
		listed.Chunks = append(listed.Chunks, d.reportOf(&h))
	}
	return &wire.StatDevicesReply{Listed: listed}, nil
}
