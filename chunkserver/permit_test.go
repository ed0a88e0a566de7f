package chunkserver_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/wire"
)

// as returns a context of a client with a token of a session.
func as(t *testing.T, session uint64, allTenants bool) context.Context {
	return transport.WithPeer(t.Context(), &transport.Peer{Role: transport.RoleClient, Node: "c",
		Token: &wire.TokenClaims{Session: session, AllTenants: allTenants, Tenants: []uint32{7}}})
}

// asServer returns a context of a chunkserver.
func asServer(t *testing.T, node string) context.Context {
	return transport.WithPeer(t.Context(), &transport.Peer{Role: transport.RoleChunkserver, Node: node})
}

// TestAPutNeedsACapabilityThatCoversIt: for any certificate, a put needs a
// capability of the caller's own that covers exactly that chunk. Nothing else
// changes stored chunks.
func TestAPutNeedsACapabilityThatCoversIt(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	kept := chunk(1, 1000)
	_, err := kept.put(t, h)
	require.NoError(t, err)
	const read, write = wire.CapabilityRight_CAPABILITY_RIGHT_READ, wire.CapabilityRight_CAPABILITY_RIGHT_WRITE
	stripes := []*wire.StripeRange{{First: 1 << 40, Count: 100}}
	own := func(c *wire.CapabilityClaims) []byte {
		if c.Session == 0 && c.Node == "" {
			c.Session = session
		}
		if c.Right == 0 {
			c.Right = write
		}
		if c.Stripes == nil && c.Intents == nil {
			c.Stripes = stripes
		}
		return capabilitytest.Sign(cluster, c)
	}
	intent := &wire.Intent{Stripe: kept.req.Stripe, Index: 1, Device: 1, Version: 2}
	repair := capabilitytest.Repair(cluster, "n2", intent)
	forged := own(&wire.CapabilityClaims{})
	forged[len(forged)-1] ^= 1
	client, mover := as(t, session, true), asServer(t, "n2")
	for name, c := range map[string]struct {
		ctx        context.Context
		capability []byte
		version    uint32
		repair     bool
	}{
		"none":                       {client, nil, 1, false},
		"none, of a server":          {mover, nil, 1, false},
		"none, a repair":             {client, nil, 2, true},
		"none, a repair of a server": {mover, nil, 2, true},
		"no bytes of one":            {client, []byte("garbage"), 1, false},
		"a wrong signature":          {client, forged, 1, false},
		"a newer version":            {client, own(&wire.CapabilityClaims{}), 2, false},
		"the last version":           {client, own(&wire.CapabilityClaims{}), 1<<32 - 2, false},
		"as a repair":                {client, own(&wire.CapabilityClaims{}), 1, true},
		"to read only":               {client, own(&wire.CapabilityClaims{Right: read}), 1, false},
		"other stripes":              {client, own(&wire.CapabilityClaims{Stripes: []*wire.StripeRange{{First: 1 << 40, Count: 1}, {First: 1<<40 + 2, Count: 9}}}), 1, false},
		"of shorter chunks":          {client, own(&wire.CapabilityClaims{Length: 999}), 1, false},
		"of fewer chunks":            {client, own(&wire.CapabilityClaims{Chunks: 1}), 1, false},
		"expired":                    {client, own(&wire.CapabilityClaims{Expires: time.Now().Add(-time.Second).Unix()}), 1, false},
		"another cluster's":          {client, own(&wire.CapabilityClaims{Cluster: make([]byte, 16)}), 1, false},
		"another session's":          {as(t, session+1, true), own(&wire.CapabilityClaims{}), 1, false},
		"of a session, by a server":  {mover, own(&wire.CapabilityClaims{}), 1, false},
		"of a server, by a session":  {client, own(&wire.CapabilityClaims{Node: "c"}), 1, false},
		"a repair by a client":       {client, repair, 2, true},
		"another server's":           {asServer(t, "n3"), repair, 2, true},
		"a repair, other version":    {mover, repair, 3, true},
		"a repair, not as one":       {mover, repair, 2, false},
		"a repair, other chunk":      {mover, capabilitytest.Repair(cluster, "n2", &wire.Intent{Stripe: kept.req.Stripe, Index: 2, Device: 1, Version: 2}), 2, true},
	} {
		ch := chunk(1, 1000)
		ch.data[0] ^= 1
		ch.req.Crc, ch.req.Version, ch.req.Repair, ch.req.Capability = crc.Sum(ch.data), c.version, c.repair, c.capability
		_, err := h.PutChunk(c.ctx, ch.req, &payload{data: ch.data})
		require.ErrorIs(t, err, moraine.PermissionDenied, name)
		kept.check(t, h)
	}
	// Even a capability that covers it does not replace a stored chunk.
	ch := chunk(1, 1000)
	ch.data[0] ^= 1
	ch.req.Crc = crc.Sum(ch.data)
	_, err = h.PutChunk(client, ch.req, &payload{data: ch.data})
	require.ErrorIs(t, err, moraine.Exists)
	kept.check(t, h)
	_, err = h.PutChunk(client, kept.req, &payload{data: kept.data})
	require.NoError(t, err, "the same bytes again, as after a lost reply")
}

// TestAServerReadsForItsJobsOnly: a chunkserver or metadata server reads exactly
// what a capability of its own covers, with a session token or without. That is the
// stripes of a job's files, and those whose chunks its repair puts.
func TestAServerReadsForItsJobsOnly(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	c := chunk(1, 1000)
	_, err := c.put(t, h)
	require.NoError(t, err)
	claims := func(node string, session, stripe uint64) *wire.CapabilityClaims {
		return &wire.CapabilityClaims{Node: node, Session: session, Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ,
			Stripes: []*wire.StripeRange{{First: stripe, Count: 1}}}
	}
	repair := func(node string, stripe uint64) []byte {
		return capabilitytest.Repair(cluster, node, &wire.Intent{Stripe: stripe, Index: 3, Device: 9, Version: 2})
	}
	with := func(role transport.Role, token *wire.TokenClaims) context.Context {
		return transport.WithPeer(t.Context(), &transport.Peer{Role: role, Node: "n2", Token: token})
	}
	token := &wire.TokenClaims{Session: session, AllTenants: true}
	s := c.req.Stripe
	for name, x := range map[string]struct {
		ctx        context.Context
		capability []byte
		may        bool
	}{
		"for a file of its job":           {with(transport.RoleChunkserver, token), capabilitytest.Sign(cluster, claims("n2", session, s)), true},
		"without a session":               {with(transport.RoleChunkserver, nil), capabilitytest.Sign(cluster, claims("n2", 0, s)), true},
		"to repair another chunk":         {with(transport.RoleChunkserver, nil), repair("n2", s), true},
		"without a capability":            {with(transport.RoleChunkserver, token), nil, false},
		"without session and capability":  {with(transport.RoleChunkserver, nil), nil, false},
		"a metadata server":               {with(transport.RoleMetadata, nil), nil, false},
		"with another session's":          {with(transport.RoleChunkserver, token), capabilitytest.Sign(cluster, claims("n2", session+1, s)), false},
		"with another node's":             {with(transport.RoleChunkserver, nil), capabilitytest.Sign(cluster, claims("n3", 0, s)), false},
		"with another node's of a repair": {with(transport.RoleChunkserver, nil), repair("n3", s), false},
		"of another stripe":               {with(transport.RoleChunkserver, token), capabilitytest.Sign(cluster, claims("n2", session, s+1)), false},
		"to repair another stripe":        {with(transport.RoleChunkserver, nil), repair("n2", s+1), false},
	} {
		req := c.get(0, 1000)
		req.Capability = x.capability
		_, _, release, err := h.GetChunk(x.ctx, req)
		if x.may {
			require.NoError(t, err, name)
			release()
			continue
		}
		require.ErrorIs(t, err, moraine.PermissionDenied, name)
	}
}

// TestACapabilityEndsWithItsIncarnation: a capability signed by metadata that was
// restored since is void.
func TestACapabilityEndsWithItsIncarnation(t *testing.T) {
	meta := newFakeMeta()
	meta.raised = 4
	h := start(t, vfs.NewMem(1), meta, config("/a"))
	c := chunk(1, 1000)
	for incarnation, kind := range map[uint64]moraine.Kind{4: moraine.PermissionDenied, 5: 0, 6: 0} {
		c.req.Capability = capabilitytest.Sign(cluster, &wire.CapabilityClaims{Session: session, Incarnation: incarnation,
			Right: wire.CapabilityRight_CAPABILITY_RIGHT_WRITE, Stripes: []*wire.StripeRange{{First: c.req.Stripe, Count: 1}}})
		_, err := h.PutChunk(as(t, session, true), c.req, &payload{data: c.data})
		requireKind(t, kind, err, "incarnation")
	}
}

// TestAReadOfAConfinedSessionNeedsACapability: a session of the root reads
// everything. A session that is confined to a directory reads exactly what a
// capability of its own covers.
func TestAReadOfAConfinedSessionNeedsACapability(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	c := chunk(1, 1000)
	_, err := c.put(t, h)
	require.NoError(t, err)
	get := func(ctx context.Context, capability []byte) error {
		req := c.get(0, 1000)
		req.Capability = capability
		_, _, release, err := h.GetChunk(ctx, req)
		if err == nil {
			release()
		}
		return err
	}
	read := func(session, first uint64) []byte {
		return capabilitytest.Sign(cluster, &wire.CapabilityClaims{Session: session, Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ,
			Stripes: []*wire.StripeRange{{First: 3, Count: 5}, {First: first, Count: 1}}})
	}
	confined := as(t, session, false)
	require.NoError(t, get(as(t, session, true), nil))
	require.NoError(t, get(confined, read(session, c.req.Stripe)))
	require.NoError(t, get(confined, c.req.Capability), "a capability to write a stripe covers reads of it")
	for name, capability := range map[string][]byte{
		"none":              nil,
		"another stripe":    read(session, c.req.Stripe+1),
		"another session's": read(session+1, c.req.Stripe),
		"a repair":          capabilitytest.Repair(cluster, "c", &wire.Intent{Stripe: c.req.Stripe, Index: 1, Device: 1, Version: 2}),
	} {
		require.ErrorIs(t, get(confined, capability), moraine.PermissionDenied, name)
	}
	missing := chunk(9, 1000)
	missing.req.Capability = read(session, c.req.Stripe)
	req := missing.get(0, 1000)
	req.Capability = missing.req.Capability
	_, _, _, err = h.GetChunk(confined, req)
	require.ErrorIs(t, err, moraine.PermissionDenied, "a chunk that is not here is refused as one that is")
}

// TestARepairTakesThePlaceOfAnyVersion: a repair replaces a chunk of a greater
// version than the record's, in memory and on the device. A chunk with the right
// bytes stays.
func TestARepairTakesThePlaceOfAnyVersion(t *testing.T) {
	for _, level := range []moraine.Level{moraine.Memory, moraine.NVMe} {
		h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
		for n, version := range []uint32{1, 2, 3, 1<<32 - 2} {
			wrong := chunk(uint64(n), 1000).repair(version)
			wrong.data[0] ^= 1
			wrong.req.Crc, wrong.req.Level = crc.Sum(wrong.data), uint32(level)
			_, err := wrong.put(t, h)
			require.NoError(t, err)
			right := chunk(uint64(n), 1000).repair(2)
			_, err = right.put(t, h)
			require.NoError(t, err, "over version %d", version)
			right.check(t, h)

			again := chunk(uint64(n), 1000).repair(1)
			_, err = again.put(t, h)
			require.NoError(t, err)
			right.check(t, h)
		}
		require.NoError(t, h.stop())
	}
}
