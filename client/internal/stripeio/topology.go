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
	hosts   int // alive, with a device that takes chunks
	devices map[moraine.DeviceID]device
	servers []server // live hosts that have a bucket
}

// device is where a device is, and how its host is reached.
type device struct {
	host   string
	state  wire.DeviceState
	alive  bool // as the leader saw it
	chunks transport.Chunks
}

// TopologyCache keeps the newest topology seen. It is refreshed when a session
// reply names another version, when a device is asked for that it lacks, and
// when a server did not answer.
// Safe for concurrent use.
type TopologyCache struct {
	meta   *session.Conn
	dialer transport.Dialer

	now        atomic.Pointer[topology]
	refreshing Turn                      // locked while the topology is being asked for
	lastAsked  atomic.Pointer[time.Time] // when the last request ended; nil: there was none
	doubted    atomic.Bool
}

const (
	// minRefresh is the least time between two requests for a newer topology.
	minRefresh = 100 * time.Millisecond
	// soon bounds such a request, where the present topology may do.
	soon = 250 * time.Millisecond
)

func newTopologyCache(meta *session.Conn, dialer transport.Dialer, turn *limit.Resource) *TopologyCache {
	t := &TopologyCache{meta: meta, dialer: dialer, refreshing: NewTurn(turn)}
	t.now.Store(&topology{devices: map[moraine.DeviceID]device{}})
	return t
}

// find returns the device, after a refresh if it is unknown. Unavailable: no
// host has it.
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

// fresh looks for a topology where there is none yet, and for a newer one where
// this one is known to be old.
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

// doubt has the next find look for a newer topology: a server did not answer
// where this one says, or did not have what it says.
func (t *TopologyCache) doubt() { t.doubted.Store(true) }

// lookup returns the device from the present view, without asking.
func (t *TopologyCache) lookup(id moraine.DeviceID) (device, bool) {
	d, ok := t.now.Load().devices[id]
	return d, ok
}

// SingleHost reports whether one host alone, or none, is alive and has a device that
// takes chunks, as far as is known: its memory is one copy, whatever devices it has.
func (t *TopologyCache) SingleHost(ctx context.Context) bool {
	if err := t.fresh(ctx); err != nil {
		return false // a commit tells what it protects from
	}
	return t.now.Load().hosts < 2
}

// refreshSoon asks once for a newer topology, unless somebody does already or
// did just now. The present one most likely still serves, so that nobody waits
// for a service that does not answer.
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

// refresh asks for the topology, unless another one than seen is there by now.
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

// takes reports whether a device is there to take chunks.
func takes(d *wire.Device) bool { return d.Alive && d.State == wire.DeviceState_DEVICE_STATE_IN }
