package stripeio

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// topology is an immutable view of hosts and devices.
type topology struct {
	version uint64
	hosts   int // hosts that are up, with a device that takes chunks
	devices map[moraine.DeviceID]device
	servers []server // live hosts with a bucket
}

// device is where a device is, and how to reach its host.
type device struct {
	host   string
	state  wire.DeviceState
	alive  bool // as the leader saw it
	chunks transport.Chunks
}

// TopologyCache keeps the newest topology received. It refreshes it when a session reply names
// another version, when it lacks a device, and when a server did not answer. Safe for
// concurrent use.
type TopologyCache struct {
	meta   *session.Conn
	dialer transport.Dialer

	now        atomic.Pointer[topology]
	refreshing Turn                      // locked during a request for the topology
	lastAsked  atomic.Pointer[time.Time] // when the last request ended; nil: there was none
	doubted    atomic.Bool
}

const (
	// minRefresh is the minimum time between two requests for a newer topology.
	minRefresh = 100 * time.Millisecond
	// soon bounds such a request if the current topology may be enough.
	soon = 250 * time.Millisecond
)

func newTopologyCache(meta *session.Conn, dialer transport.Dialer, turn *limit.Resource) *TopologyCache {
	t := &TopologyCache{meta: meta, dialer: dialer, refreshing: NewTurn(turn)}
	t.now.Store(&topology{devices: map[moraine.DeviceID]device{}})
	return t
}

// find returns the device, after a refresh if it is unknown. Unavailable: no host has it.
func (t *TopologyCache) find(ctx context.Context, id moraine.DeviceID) (device, error) {
	view := t.now.Load()
	if _, known := view.devices[id]; !known {
		if err := t.refresh(ctx, view, t.meta.Do); err != nil {
			return device{}, err
		}
	} else if view.version != t.meta.TopologyVersion.Load() || t.doubted.Load() {
		t.refreshSoon(ctx, view)
	}
	if d, ok := t.now.Load().devices[id]; ok {
		return d, nil
	}
	return device{}, &moraine.Error{Op: "find device", Ref: deviceRef(id), Kind: moraine.Unavailable}
}

// fresh requests a topology if there is none, and a newer one if this one is known to be old.
func (t *TopologyCache) fresh(ctx context.Context) error {
	view := t.now.Load()
	if view.version == 0 {
		return t.refresh(ctx, view, t.meta.Do)
	}
	if view.version != t.meta.TopologyVersion.Load() || t.doubted.Load() {
		t.refreshSoon(ctx, view)
	}
	return nil
}

// doubt makes the next find request a newer topology: a server did not answer at the recorded
// place, or lacked what the topology says.
func (t *TopologyCache) doubt() { t.doubted.Store(true) }

// lookup returns the device from the current topology, without a request.
func (t *TopologyCache) lookup(id moraine.DeviceID) (device, bool) {
	d, ok := t.now.Load().devices[id]
	return d, ok
}

// SingleHost reports whether, as far as the client knows, at most one host is up with a device
// that takes chunks. Its memory is one copy, whatever devices it has.
func (t *TopologyCache) SingleHost(ctx context.Context) bool {
	if err := t.fresh(ctx); err != nil {
		return false // the reply to a commit states its protection
	}
	return t.now.Load().hosts < 2
}

// refreshSoon requests a newer topology once, unless another call does so or just did. The
// current one is probably still good, so no call waits for a service that does not answer.
func (t *TopologyCache) refreshSoon(ctx context.Context, seen *topology) {
	if t.refreshing.Taken() || t.askedJustNow() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	if err := t.refresh(ctx, seen, t.meta.Quick); err != nil {
		t.meta.Log.Debug("the topology could not be refreshed", "err", err)
	}
}

// askedJustNow reports whether the last request ended less than minRefresh ago.
func (t *TopologyCache) askedJustNow() bool {
	at := t.lastAsked.Load()
	return at != nil && t.meta.Clock.Since(*at) < minRefresh
}

// refresh requests the topology, unless it already differs from seen.
func (t *TopologyCache) refresh(ctx context.Context, seen *topology,
	ask func(context.Context, *wire.MetaRequest) (*wire.MetaResponse, error)) error {
	if err := t.refreshing.Lock(ctx); err != nil {
		return err
	}
	defer t.refreshing.Unlock()
	if t.now.Load() != seen {
		return nil
	}
	resp, err := ask(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}})
	now := t.meta.Clock.Now()
	t.lastAsked.Store(&now)
	if err != nil {
		return err
	}
	t.doubted.Store(false)
	top := resp.GetTopology()
	if top == nil {
		return retry.BadReply("get topology")
	}
	t.meta.SawTopology(top.Version)
	t.now.Store(t.build(top))
	return nil
}

func (t *TopologyCache) build(w *wire.Topology) *topology {
	top := &topology{version: w.Version, devices: map[moraine.DeviceID]device{}}
	for _, h := range w.Hosts {
		chunks := t.dialer.Chunks(h.Id, h.Addresses)
		if h.Alive && h.Bucket != "" {
			top.servers = append(top.servers, server{id: h.Id, bucket: bucketOf(h.Bucket), chunks: chunks})
		}
		if h.Alive && slices.ContainsFunc(h.Devices, takes) {
			top.hosts++
		}
		for _, d := range h.Devices {
			top.devices[moraine.DeviceID(d.Id)] = device{host: h.Id, state: d.State,
				alive: h.Alive && d.Alive, chunks: chunks}
		}
	}
	return top
}

// takes reports whether a device accepts chunks.
func takes(d *wire.Device) bool { return d.Alive && d.State == wire.DeviceState_DEVICE_STATE_IN }
