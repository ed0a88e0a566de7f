package memcluster

import (
	"context"
	"crypto/ed25519"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// learn takes the keys that sign tokens and capabilities.
func (h *Host) learn(keys []*wire.SigningKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range keys {
		h.keys[k.GetId()] = k.GetPublicKey()
	}
}

func (h *Host) key(id uint64) ed25519.PublicKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keys[id]
}

// permit verifies the caller's capability, as a chunkserver does.
func (h *Host) permit(ctx context.Context, b []byte, covers func(*wire.CapabilityClaims) bool) error {
	claims, err := h.verifier.Verify(b)
	if err == nil {
		err = capability.Holds(claims, transport.PeerFrom(ctx), ClusterID, 0, time.Now().Unix())
	}
	if err == nil && !covers(claims) {
		err = h.failed("permit", moraine.PermissionDenied)
	}
	return err
}

func (h *Host) permitPut(ctx context.Context, req *wire.PutChunk) error {
	return h.permit(ctx, req.GetCapability(), func(c *wire.CapabilityClaims) bool {
		if req.GetRepair() {
			return capability.CoversChunk(c, req.GetStripe(), req.GetIndex(), req.GetDevice(), req.GetVersion())
		}
		return c.GetRight() == wire.CapabilityRight_CAPABILITY_RIGHT_WRITE && req.GetVersion() == 1 && capability.CoversStripe(c, req.GetStripe())
	})
}

// permitGet needs a capability only of a peer whose token confines it to tenants.
func (h *Host) permitGet(ctx context.Context, req *wire.GetChunk) error {
	if p := transport.PeerFrom(ctx); p.Token == nil || p.Token.AllTenants {
		return nil
	}
	return h.permit(ctx, req.GetCapability(), func(c *wire.CapabilityClaims) bool { return capability.CoversStripe(c, req.GetStripe()) })
}
