package chunkserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// capability returns the claims of a capability that the caller shows and may
// hold.
func (s *Server) capability(ctx context.Context, op string, b []byte) (*wire.CapabilityClaims, error) {
	if len(b) == 0 {
		return nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.PermissionDenied, Err: errors.New("a capability is needed")}
	}
	claims, err := s.capabilities.Verify(b)
	if err != nil {
		return nil, err
	}
	f := s.fleet.Load()
	if f == nil {
		return nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("the devices are not registered yet")}
	}
	return claims, capability.Holds(claims, transport.PeerFrom(ctx), f.cluster, uint64(s.NewestIncarnation().Number), s.deps.Clock.Now().Unix())
}

// mayPut checks that the caller may put a chunk: the first version of it under a
// grant of its own, or, as a repair, just what an intent says. Only a repair
// replaces what is there, and is taken when the device is nearly full.
func (s *Server) mayPut(ctx context.Context, op string, req *wire.PutChunk) error {
	if err := mayTouch(ctx, op, req.Tenant, true); err != nil {
		return err
	}
	claims, err := s.capability(ctx, op, req.Capability)
	if err != nil {
		return err
	}
	ok := false
	switch claims.Right {
	case wire.CapabilityRight_CAPABILITY_RIGHT_WRITE:
		ok = !req.Repair && req.Version == 1 && req.Index < claims.Chunks && capability.CoversStripe(claims, req.Stripe)
	case wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR:
		ok = req.Repair && capability.CoversChunk(claims, req.Stripe, req.Index, req.Device, req.Version)
	}
	if !ok {
		return &moraine.Error{Op: op, Ref: chunkID(req.Stripe, req.Index).String(), Kind: moraine.PermissionDenied,
			Err: fmt.Errorf("the capability does not cover version %d on device %d", req.Version, req.Device)}
	}
	return nil
}

// readable returns the claims of the capability that a reader shows, and nil for one that
// needs none: a session of the root, of a client or an administrator. A server needs one,
// whatever its session is: it reads what the job is about that it holds, so that a stolen host
// does not open the others. What the claims cover the caller checks.
func (s *Server) readable(ctx context.Context, op string, b []byte) (*wire.CapabilityClaims, error) {
	peer := transport.PeerFrom(ctx)
	if peer == nil || !peer.Role.Server() && (peer.Token == nil || peer.Token.AllTenants) {
		return nil, nil // who has no token and must have one, mayTouch refuses
	}
	return s.capability(ctx, op, b)
}

func notCovered(op, ref string) error {
	return &moraine.Error{Op: op, Ref: ref, Kind: moraine.PermissionDenied, Err: errors.New("the capability does not cover what was asked for")}
}
