package memcluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// Host is a chunkserver with one device that keeps its chunks in a map, also while
// it is down.
type Host struct {
	ID string

	c      *Cluster
	node   *memnet.Node
	cancel context.CancelFunc

	mu     sync.Mutex
	device uint32
	epoch  uint64
	chunks map[moraine.ChunkID]*chunk
	before func(req any) error
}

type chunk struct {
	version, crc, tenant uint32
	data                 []byte
}

// Start registers the host and serves, with a heartbeat each second, until Kill.
func (h *Host) Start() {
	t := h.c.t
	t.Helper()
	var err error
	h.node, err = h.c.Net.Listen(h.ID, memnet.Options{Role: transport.RoleChunkserver, Cluster: clusterID,
		Handler: transport.HandlerForChunks(h)})
	require.NoError(t, err)
	uuid := make([]byte, 16)
	copy(uuid, h.ID)
	var resp *wire.MetaResponse
	for range 100 { // a leader may be elected soon
		resp, err = h.meta(&wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
			Host: &wire.Host{Id: h.ID, Addresses: []string{memnet.Address(h.ID)},
				Devices: []*wire.Device{{Uuid: uuid, Capacity: 1 << 40}}}}}})
		if err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.NoError(t, err)
	dev := resp.GetRegisterHost().GetDevices()[0]
	h.mu.Lock()
	h.device, h.epoch = dev.GetId(), dev.GetEpoch()
	h.mu.Unlock()
	ctx, cancel := context.WithCancel(h.c.ctx)
	h.cancel = cancel
	h.c.running.Go(func() { h.beat(ctx, dev.GetId()) })
}

func (h *Host) beat(ctx context.Context, device uint32) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		// The next heartbeat follows a lost one.
		_, _ = h.meta(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{
			Devices: []*wire.Device{{Id: device, Capacity: 1 << 40}}}}})
	}
}

func (h *Host) meta(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return h.c.Ask(transport.RoleChunkserver, h.ID, req)
}

// Kill ends the process: connections break and heartbeats stop.
func (h *Host) Kill() {
	h.cancel()
	require.NoError(h.c.t, h.node.Close())
}

// Before makes fn see each request to the host, which it may fail; nil for none.
func (h *Host) Before(fn func(req any) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = fn
}

// Chunks returns how many chunks the host holds.
func (h *Host) Chunks() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.chunks)
}

func (h *Host) check(req any, device uint32) error {
	h.mu.Lock()
	before := h.before
	mine := device == h.device
	h.mu.Unlock()
	if !mine {
		return &moraine.Error{Op: "chunk", Ref: h.ID, Kind: moraine.Unavailable, Err: fmt.Errorf("device %d is not on this host", device)}
	}
	if before != nil {
		return before(req)
	}
	return nil
}

// PutChunk implements transport.ChunkService.
func (h *Host) PutChunk(_ context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	data := make([]byte, p.Len())
	if err := p.ReadInto(data, nil); err != nil {
		return nil, err
	}
	if err := h.check(req, req.GetDevice()); err != nil {
		return nil, err
	}
	if sum := crc.Sum(data); sum != req.GetCrc() {
		return nil, &moraine.Error{Op: "put", Ref: h.ID, Kind: moraine.Corrupt, Err: fmt.Errorf("chunk checksum %08x, not %08x", sum, req.GetCrc())}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	id := moraine.ChunkID{Stripe: moraine.StripeID(req.GetStripe()), Index: uint8(req.GetIndex())}
	if old := h.chunks[id]; old != nil && old.version == req.GetVersion() && old.crc != req.GetCrc() {
		return nil, &moraine.Error{Op: "put", Ref: h.ID, Kind: moraine.Exists}
	}
	h.chunks[id] = &chunk{req.GetVersion(), req.GetCrc(), req.GetTenant(), data}
	return &wire.PutChunkReply{Level: req.GetLevel(), Epoch: h.epoch}, nil
}

// GetChunk implements transport.ChunkService.
func (h *Host) GetChunk(_ context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	if err := h.check(req, req.GetDevice()); err != nil {
		return nil, nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.chunks[moraine.ChunkID{Stripe: moraine.StripeID(req.GetStripe()), Index: uint8(req.GetIndex())}]
	fail := func(kind moraine.Kind) (*wire.GetChunkReply, [][]byte, func(), error) {
		return nil, nil, nil, &moraine.Error{Op: "get", Ref: h.ID, Kind: kind}
	}
	switch {
	case c == nil:
		return fail(moraine.NotFound)
	case c.tenant != req.GetTenant():
		return fail(moraine.PermissionDenied)
	case req.GetOffset()+req.GetLength() > uint64(len(c.data)):
		return fail(moraine.InvalidArgument)
	case crc.Sum(c.data) != c.crc:
		return fail(moraine.Corrupt)
	}
	data := c.data[req.GetOffset():][:req.GetLength()]
	return &wire.GetChunkReply{Version: c.version, Crc: c.crc, PayloadCrc: crc.Sum(data), ChunkLength: uint64(len(c.data))},
		[][]byte{data}, func() {}, nil
}

// GetPiece implements transport.ChunkService: these hosts have no bucket.
func (h *Host) GetPiece(context.Context, *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	return nil, nil, nil, &moraine.Error{Op: "piece", Ref: h.ID, Kind: moraine.Unavailable, Err: errors.New("host has no bucket")}
}

// SyncDevices implements transport.ChunkService.
func (h *Host) SyncDevices(context.Context, *wire.SyncDevices) (*wire.SyncDevicesReply, error) {
	return &wire.SyncDevicesReply{}, nil
}

// StatDevices implements transport.ChunkService.
func (h *Host) StatDevices(context.Context, *wire.StatDevices) (*wire.StatDevicesReply, error) {
	return &wire.StatDevicesReply{}, nil
}
