package chunkserver

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// permits decides what a caller may do, by its certificate, its session's token and
// the capability that it presents. The verifier has its own lock.
type permits struct {
	cfg      *Config
	deps     *Deps
	meta     *metaState
	fleet    *atomic.Pointer[fleet]
	verifier *capability.Verifier // with the keys of meta
}

// capability returns the claims of the capability that the caller presents and may
// hold.
func (p *permits) capability(ctx context.Context, op string, b []byte) (*wire.CapabilityClaims, error) {
	if len(b) == 0 {
		return nil, &moraine.Error{Op: op, Ref: p.cfg.Node, Kind: moraine.PermissionDenied, Err: errors.New("capability is missing")}
	}
	claims, err := p.verifier.Verify(b)
	if err != nil {
		return nil, err
	}
	f := p.fleet.Load()
	if f == nil {
		return nil, &moraine.Error{Op: op, Ref: p.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("devices are not registered yet: try again later")}
	}
	return claims, capability.Holds(claims, transport.PeerFrom(ctx), f.cluster, uint64(p.meta.newest().Number), p.deps.Clock.Now().Unix())
}

// mayPut checks that the caller may put a chunk. That is the first version of
// it under a grant of its own or, as a repair, exactly what an intent says.
// Only a repair replaces a stored chunk, and is accepted when the device is
// nearly full.
func (p *permits) mayPut(ctx context.Context, op string, req *wire.PutChunk, length int) error {
	if err := mayTouch(ctx, op, req.Tenant, true); err != nil {
		return err
	}
	claims, err := p.capability(ctx, op, req.Capability)
	if err != nil {
		return err
	}
	ok := false
	switch claims.Right {
	case wire.CapabilityRight_CAPABILITY_RIGHT_WRITE:
		ok = !req.Repair && req.Version == 1 && req.Index < claims.Chunks && length <= int(claims.Length) && capability.CoversStripe(claims, req.Stripe)
	case wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR:
		ok = req.Repair && capability.CoversChunk(claims, req.Stripe, req.Index, req.Device, req.Version)
	}
	if !ok {
		return &moraine.Error{Op: op, Ref: chunkID(req.Stripe, req.Index).String(), Kind: moraine.PermissionDenied,
			Err: fmt.Errorf("capability does not cover version %d of %d bytes on device %d", req.Version, length, req.Device)}
	}
	return nil
}

// readable returns the claims of the capability that a reader presents. It
// returns nil for a reader that needs none: a session of the root, of a client
// or an administrator. A server needs a capability, whatever its session. It
// reads only the data of the job that it runs, so a stolen host does not expose
// the others. The caller checks what the claims cover.
func (p *permits) readable(ctx context.Context, op string, b []byte) (*wire.CapabilityClaims, error) {
	peer := transport.PeerFrom(ctx)
	if peer == nil || !peer.Role.Server() && (peer.Token == nil || peer.Token.AllTenants) {
		return nil, nil // mayTouch refuses a reader without a required token
	}
	return p.capability(ctx, op, b)
}

func notCovered(op, ref string) error {
	return &moraine.Error{Op: op, Ref: ref, Kind: moraine.PermissionDenied, Err: errors.New("capability does not cover the request")}
}

// mayInspect checks that the caller is an administrator or a server. Clients get
// information about devices only from the metadata service.
func (p *permits) mayInspect(ctx context.Context, op string) error {
	peer := transport.PeerFrom(ctx)
	if peer == nil || peer.Role == transport.RoleAdmin || peer.Role.Server() {
		return nil
	}
	return &moraine.Error{Op: op, Ref: p.cfg.Node, Kind: moraine.PermissionDenied, Err: errors.New("permission denied: only an administrator or a server may inspect devices")}
}
