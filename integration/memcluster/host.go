package memcluster

import (
	"context"
	"crypto/ed25519"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// Host is a chunkserver with one device that keeps its chunks in a map, also while
// it is down.
type Host struct {
	ID string

	c        *Cluster
	node     *memnet.Node
	cancel   context.CancelFunc
	verifier *capability.Verifier // it has a lock of its own

	mu     sync.Mutex
	device uint32
	epoch  uint64
	keys   map[uint64]ed25519.PublicKey
	before func(ctx context.Context, req any) error
	faults Faults
	counts Counts

	chunks  map[moraine.ChunkID]*Chunk
	objects map[uint64][]byte // of its bucket
	pieces  []*wire.GetPiece  // those that it served
}

// Counts counts what a host served.
type Counts struct {
	Puts     int
	Gets     int64 // of chunks
	GetBytes int64
}

func newHost(c *Cluster, id string) *Host {
	h := &Host{c: c, ID: id, chunks: make(map[moraine.ChunkID]*Chunk), keys: make(map[uint64]ed25519.PublicKey)}
	h.verifier = capability.NewVerifier(h.key)
	return h
}

// Start registers the host and serves, with a heartbeat each second, until Kill.
func (h *Host) Start() {
	t := h.c.t
	t.Helper()
	var err error
	h.node, err = h.c.Net.Listen(h.ID, memnet.Options{Role: transport.RoleChunkserver, Cluster: ClusterID,
		Handler: transport.HandlerForChunks(h), Keys: h.key})
	require.NoError(t, err)
	uuid := make([]byte, 16)
	copy(uuid, h.ID)
	var resp *wire.MetaResponse
	for range 100 { // a leader may be elected soon
		resp, err = h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
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
	h.learn(append(resp.GetRegisterHost().GetKeys(), capabilitytest.Key()))
	ctx, cancel := context.WithCancel(h.c.ctx)
	h.cancel = cancel
	h.c.running.Go(func() { h.beat(ctx, dev) })
}

func (h *Host) beat(ctx context.Context, dev *wire.Device) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		resp, err := h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{
			Devices: []*wire.Device{{Id: dev.GetId(), Epoch: dev.GetEpoch(), Capacity: 1 << 40}}}}})
		if err == nil { // the next heartbeat follows a lost one
			h.learn(resp.GetHeartbeat().GetKeys())
			h.verify(resp.GetHeartbeat())
			h.settle(resp.GetHeartbeat())
		}
	}
}

// Ask sends a request to the leader, as this host.
func (h *Host) Ask(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return h.c.Ask(transport.RoleChunkserver, h.ID, req)
}

// Kill ends the process: connections break and heartbeats stop.
func (h *Host) Kill() {
	h.cancel()
	require.NoError(h.c.t, h.node.Close())
}

// Device returns the number of the host's device.
func (h *Host) Device() uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.device
}

// Epoch returns the epoch of the host's device.
func (h *Host) Epoch() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.epoch
}

// Counts returns what the host served since its first start.
func (h *Host) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

// SyncDevices implements transport.ChunkService.
func (h *Host) SyncDevices(context.Context, *wire.SyncDevices) (*wire.SyncDevicesReply, error) {
	return &wire.SyncDevicesReply{}, nil
}

// StatDevices implements transport.ChunkService.
func (h *Host) StatDevices(context.Context, *wire.StatDevices) (*wire.StatDevicesReply, error) {
	return &wire.StatDevicesReply{}, nil
}
