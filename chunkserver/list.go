package chunkserver

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// listChunks lists the chunks of a device for an administrator (`moraine fsck`), in
// the form of a report. It requires no session token, since no client may call it.
func (s *Server) listChunks(ctx context.Context, list *wire.ListChunks) (*wire.StatDevicesReply, error) {
	const op = "chunkserver.List"
	if peer := transport.PeerFrom(ctx); peer != nil && peer.Role != transport.RoleAdmin {
		return nil, &moraine.Error{Op: op, Ref: peer.Node, Kind: moraine.PermissionDenied, Err: errors.New("permission denied: only an administrator may list the chunks of a device")}
	}
	d, err := s.device(op, list.Device)
	if err != nil {
		return nil, err
	}
	if err := d.tier.Err(); err != nil {
		return nil, err // its index is no longer trusted
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
