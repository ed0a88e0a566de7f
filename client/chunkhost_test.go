package client_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// chunkHost is a chunkserver with one device that stores chunks in a map.
type chunkHost struct {
	c      *cluster
	id     string
	device uint32
	epoch  uint64
	node   *memnet.Node
	stop   context.CancelFunc

	mu     sync.Mutex
	chunks map[moraine.ChunkID]*heldChunk
	// before, if not nil, receives each request first and may fail or delay it.
	before func(ctx context.Context, req any) error
	keys   map[uint64]ed25519.PublicKey
	// verifier has the keys, and a lock of its own.
	verifier *capability.Verifier

	weak   bool // puts reach only level memory
	puts   int
	gets   int
	gotten int64 // bytes

	objects map[uint64][]byte // of its bucket
	pieces  []*wire.GetPiece  // pieces that it served
	garble  bool              // serves other bytes of objects than it states
	rotten  bool              // serves other bytes of chunks than it states, unless it must verify them
}

type heldChunk struct {
	version uint32
	crc     uint32
	tenant  uint32
	data    []byte
}

func (c *cluster) addHost(id string) *chunkHost {
	c.t.Helper()
	h := &chunkHost{c: c, id: id, chunks: map[moraine.ChunkID]*heldChunk{}}
	h.verifier = capability.NewVerifier(h.key)
	c.hosts = append(c.hosts, h)
	h.start()
	return h
}

// start registers the host and serves, with heartbeats, until kill.
func (h *chunkHost) start() {
	t := h.c.t
	t.Helper()
	var err error
	h.node, err = h.c.net.Listen(h.id, memnet.Options{Role: transport.RoleChunkserver, Cluster: clusterUUID,
		Handler: transport.HandlerForChunks(h), Keys: h.key})
	require.NoError(t, err)
	uuid := make([]byte, 16)
	copy(uuid, h.id)
	resp, err := h.meta(&wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
		Host: &wire.Host{Id: h.id, Addresses: []string{memnet.Address(h.id)},
			Devices: []*wire.Device{{Uuid: uuid, Capacity: 1 << 40}}}}}})
	require.NoError(t, err)
	dev := resp.GetRegisterHost().Devices[0]
	h.mu.Lock()
	h.device, h.epoch = dev.Id, dev.Epoch
	h.mu.Unlock()
	h.learn(append(resp.GetRegisterHost().Keys, capabilitytest.Key()))
	device := dev.Id
	ctx, stop := context.WithCancel(h.c.ctx)
	h.stop = stop
	h.c.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			resp, err := h.meta(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{
				Devices: []*wire.Device{{Id: device, Epoch: dev.Epoch, Capacity: 1 << 40}}}}})
			if err == nil {
				h.learn(resp.GetHeartbeat().Keys)
				h.verify(resp.GetHeartbeat())
			}
		}
	})
}

// verify verifies the stripes that clients reported as bad, as a chunkserver does: it reports
// the damaged chunks that it finds, and lists all that it has.
func (h *chunkHost) verify(beat *wire.HeartbeatReply) {
	for _, w := range beat.Verify {
		slice := &wire.ReportChunks{Device: w.Device, From: w.Stripe, To: w.Stripe + 1, PassStarted: beat.Applied, Scrub: true}
		var bad []*wire.BadChunk
		h.mu.Lock()
		for id, ch := range h.chunks {
			if uint64(id.Stripe) != w.Stripe {
				continue
			}
			if crc.Sum(ch.data) != ch.crc {
				bad = append(bad, &wire.BadChunk{Stripe: w.Stripe, Index: uint32(id.Index), Device: w.Device, Version: ch.version, Kind: uint32(moraine.Corrupt)})
			}
			slice.Chunks = append(slice.Chunks, &wire.ChunkReport{Stripe: w.Stripe, Index: uint32(id.Index), Version: ch.version, Crc: ch.crc, Length: uint64(len(ch.data))})
		}
		h.mu.Unlock()
		if len(bad) > 0 {
			_, _ = h.meta(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: bad}}})
		}
		_, _ = h.meta(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: slice}}) // readers report it again
	}
}

// learn takes the keys that sign tokens.
func (h *chunkHost) learn(keys []*wire.SigningKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys == nil {
		h.keys = map[uint64]ed25519.PublicKey{}
	}
	for _, k := range keys {
		h.keys[k.Id] = k.PublicKey
	}
}

func (h *chunkHost) key(id uint64) ed25519.PublicKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keys[id]
}

// kill ends the process: connections break, heartbeats stop. The chunks stay.
func (h *chunkHost) kill() {
	h.stop()
	require.NoError(h.c.t, h.node.Close())
}

// meta sends a request to the leader, as this host.
func (h *chunkHost) meta(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	d := h.c.net.Dialer(h.c.peer(transport.RoleChunkserver, h.id))
	defer d.Close()
	ctx, cancel := context.WithTimeout(h.c.ctx, 5*time.Second)
	defer cancel()
	return d.Metadata([]string{memnet.Address(h.c.group.Leader())}).Do(ctx, req)
}

// fail calls fn with each request of the host before serving it; nil for none.
func (h *chunkHost) fail(fn func(ctx context.Context, req any) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = fn
}

func (h *chunkHost) hook(ctx context.Context, req any) error {
	h.mu.Lock()
	before := h.before
	h.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, req)
}

// permit verifies the caller's capability, as a chunkserver does.
func (h *chunkHost) permit(ctx context.Context, b []byte, covers func(*wire.CapabilityClaims) bool) error {
	claims, err := h.verifier.Verify(b)
	if err == nil {
		err = capability.Holds(claims, transport.PeerFrom(ctx), clusterUUID, 0, time.Now().Unix())
	}
	if err == nil && !covers(claims) {
		err = &moraine.Error{Op: "permit", Ref: h.id, Kind: moraine.PermissionDenied}
	}
	return err
}

func (h *chunkHost) PutChunk(ctx context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	data := make([]byte, p.Len())
	if err := p.ReadInto(data, nil); err != nil {
		return nil, err
	}
	if err := h.hook(ctx, req); err != nil {
		return nil, err
	}
	fail := func(kind moraine.Kind, format string, args ...any) (*wire.PutChunkReply, error) {
		return nil, &moraine.Error{Op: "put", Ref: h.id, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	if sum := crc.Sum(data); sum != req.Crc {
		return fail(moraine.Corrupt, "sum %08x, not %08x", sum, req.Crc)
	}
	if err := h.permit(ctx, req.Capability, func(c *wire.CapabilityClaims) bool {
		if req.Repair {
			return capability.CoversChunk(c, req.Stripe, req.Index, req.Device, req.Version)
		}
		return c.Right == wire.CapabilityRight_CAPABILITY_RIGHT_WRITE && req.Version == 1 && capability.CoversStripe(c, req.Stripe)
	}); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if req.Device != h.device {
		return fail(moraine.Unavailable, "device %d is not here", req.Device)
	}
	h.puts++
	id := moraine.ChunkID{Stripe: moraine.StripeID(req.Stripe), Index: uint8(req.Index)}
	if old := h.chunks[id]; old != nil && old.version == req.Version && old.crc != req.Crc {
		return fail(moraine.Exists, "other bytes of that number are here")
	}
	h.chunks[id] = &heldChunk{req.Version, req.Crc, req.Tenant, data}
	if h.weak {
		req.Level = uint32(moraine.Memory)
	}
	return &wire.PutChunkReply{Level: req.Level, Epoch: h.epoch}, nil
}

func (h *chunkHost) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	if err := h.hook(ctx, req); err != nil {
		return nil, nil, nil, err
	}
	if p := transport.PeerFrom(ctx); p.Token != nil && !p.Token.AllTenants {
		if err := h.permit(ctx, req.Capability, func(c *wire.CapabilityClaims) bool { return capability.CoversStripe(c, req.Stripe) }); err != nil {
			return nil, nil, nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gets++
	ch := h.chunks[moraine.ChunkID{Stripe: moraine.StripeID(req.Stripe), Index: uint8(req.Index)}]
	fail := func(kind moraine.Kind) (*wire.GetChunkReply, [][]byte, func(), error) {
		return nil, nil, nil, &moraine.Error{Op: "get", Ref: h.id, Kind: kind}
	}
	switch {
	case req.Device != h.device || ch == nil:
		return fail(moraine.NotFound)
	case ch.tenant != req.Tenant:
		return fail(moraine.PermissionDenied)
	case req.Offset+req.Length > uint64(len(ch.data)):
		return fail(moraine.InvalidArgument)
	case crc.Sum(ch.data) != ch.crc:
		return fail(moraine.Corrupt)
	}
	data := ch.data[req.Offset:][:req.Length]
	h.gotten += int64(len(data))
	reply := &wire.GetChunkReply{Version: ch.version, Crc: ch.crc, PayloadCrc: crc.Sum(data), ChunkLength: uint64(len(ch.data))}
	if h.rotten && !req.Verify {
		data = bytesOf(99, len(data))
	}
	return reply, [][]byte{data}, func() {}, nil
}

func (h *chunkHost) GetPiece(ctx context.Context, req *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	if err := h.hook(ctx, req); err != nil {
		return nil, nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	data, ok := h.objects[req.Object]
	if !ok {
		return nil, nil, nil, &moraine.Error{Op: "piece", Ref: h.id, Kind: moraine.Lost}
	}
	h.pieces = append(h.pieces, req)
	data = data[req.Offset:][:req.Length]
	reply := &wire.GetPieceReply{PayloadCrc: crc.Sum(data)}
	if h.garble {
		data = bytesOf(99, len(data))
	}
	return reply, [][]byte{data}, func() {}, nil
}

func (h *chunkHost) SyncDevices(context.Context, *wire.SyncDevices) (*wire.SyncDevicesReply, error) {
	return &wire.SyncDevicesReply{}, nil
}

func (h *chunkHost) StatDevices(context.Context, *wire.StatDevices) (*wire.StatDevicesReply, error) {
	return &wire.StatDevicesReply{}, nil
}

// change calls fn with each stored chunk. fn may change the chunk, or delete it by returning
// false.
func (h *chunkHost) change(fn func(id moraine.ChunkID, ch *heldChunk) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, ch := range h.chunks {
		if !fn(id, ch) {
			delete(h.chunks, id)
		}
	}
}

func (h *chunkHost) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.chunks)
}
