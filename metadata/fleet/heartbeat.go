package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// maxDeviceChanges bounds the devices whose state one tick changes.
const maxDeviceChanges = 64

// RegisterHost records a host and its devices, and gives each device its boot epoch.
func (f *Fleet) RegisterHost(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	host, err := c.Host()
	if err != nil {
		return nil, err
	}
	if c.Req.GetRegisterHost().GetHost() == nil {
		return nil, &moraine.Error{Ref: host, Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request names no host")}
	}
	mark := f.Topology.Mark()
	asked := c.Req.GetRegisterHost()
	if err := f.Topology.View().mayRegister(c, host); err != nil {
		return nil, err
	}
	if err := f.checkReportedIncarnation(host, transport.MarkedIncarnation(asked.SeenIncarnation, asked.SeenMark)); err != nil {
		return nil, err
	}
	req := proto.CloneOf(c.Req)
	req.GetRegisterHost().Host.Id = host
	req.GetRegisterHost().SeenIncarnation, req.GetRegisterHost().SeenMark = 0, nil // the log does not need these
	f.Topology.boots(host, asked.GetHost().GetDevices())
	f.endpoints.booted(host)
	resp, err := f.Propose(ctx, c.Caller, req)
	if err != nil || resp.GetError() != nil {
		return resp, err
	}
	if err := f.LoadHosts(); err != nil {
		return nil, err
	}
	f.Topology.NoteHeartbeat(host, nil, mark, f.Clock.Now())
	reply := resp.GetRegisterHost()
	reply.Cluster, reply.Incarnation, reply.Mark = f.Cluster.UUID[:], uint64(f.Cluster.Incarnation), f.mark()
	reply.Keys, reply.GraceMillis = f.leader.Keys(), uint64(f.cfg.Grace.Milliseconds())
	return resp, nil
}

// Heartbeat records that a host is up, and answers with the chunks that it must
// delete. They have been dead for longer than the grace period, in a state that
// this server has just proved to be current.
func (f *Fleet) Heartbeat(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	host, err := c.Host()
	if err != nil {
		return nil, err
	}
	mark := f.Topology.Mark()
	if err := f.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	asked := c.Req.GetHeartbeat()
	if err := f.checkReportedIncarnation(host, transport.MarkedIncarnation(asked.SeenIncarnation, asked.SeenMark)); err != nil {
		return nil, err
	}
	known := f.Topology.NoteHeartbeat(host, asked.Devices, mark, f.Clock.Now())
	v := f.Topology.View()
	now := f.Clock.Now()
	f.Certificates.Saw(c.Peer, now)
	if v.Hosts[host] != nil {
		f.bucketHealths.note(host, asked.Bucket, now)
	}
	reply := &wire.HeartbeatReply{Probe: f.endpoints.noteProbes(host, asked.Probes, now), WatchBucket: v.watches(host), Keys: f.leader.Keys(), TopologyVersion: v.Wire.Version, Register: !known,
		Incarnation: uint64(f.Cluster.Incarnation), Mark: f.mark()}
	revoked := f.leader.Revoked()
	if reply.RevokedVersion = revoked.Version(); reply.RevokedVersion != asked.RevokedVersion {
		reply.Revoked = revoked.List()
	}
	var devices, working []uint32
	var own []*wire.Device // ignore what the host reports about other hosts' devices
	for _, d := range asked.Devices {
		have := v.Devices[d.Id]
		if have != nil && have.Host == host {
			own = append(own, d)
		}
		switch {
		case have == nil || have.Host != host, have.Epoch != d.Epoch:
			reply.Register = true
		default:
			devices = append(devices, d.Id)
			if holds(have) && !have.Reported {
				reply.Report = append(reply.Report, d.Id)
			}
			if d.State != wire.DeviceState_DEVICE_STATE_OUT { // if it is out it cannot delete anything
				working = append(working, d.Id)
			}
		}
	}
	reply.Scrub = f.scrubs.tell(own)
	reply.Verify = f.suspects.give(working, now)
	limit := int(min(asked.MaxDeletions, fleet.MaxDeleted))
	err = f.Store.View(func(r kvtx.Reader, applied uint64) (err error) {
		reply.Applied = applied
		if reply.Deletions, err = f.deletions(r, working, limit); err != nil {
			return err
		}
		if h := v.Hosts[host]; h != nil {
			answers := asked.Bucket.GetTried() && asked.Bucket.GetError() == ""
			if reply.CheckObjects, err = f.Objects.give(r, f.Machine, host, h.Bucket, answers, f.Began, now); err != nil {
				return err
			}
		}
		reply.Memory, err = f.inMemory(r, devices)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.Metrics.Deletions.Add(float64(len(reply.Deletions)))
	return &wire.MetaResponse{Result: &wire.MetaResponse_Heartbeat{Heartbeat: reply}}, nil
}

// deletions returns at most limit deletions for devices, of chunks dead for longer than the grace,
// or the backup horizon. It returns none until every device has reported since the metadata was
// restored. The devices share the limit equally, and the unused part of one goes to the others. No
// device, also no slow one, therefore delays the others' deletions.
func (f *Fleet) deletions(r kvtx.Reader, devices []uint32, limit int) ([]*wire.Deletion, error) {
	now, err := kvtx.ClusterTime(f.Machine.View(r))
	grace := uint64(f.cfg.Grace.Milliseconds())
	if err != nil || now <= grace {
		return nil, err
	}
	if waits, err := f.ReportsAwaited(r); err != nil || waits {
		return nil, err
	}
	left, lists := limit, make([][]*wire.Deletion, len(devices))
	more := make([]int, len(devices)) // devices that may have more deletions than their share
	for i := range devices {
		more[i] = i
	}
	for len(more) > 0 && left > 0 {
		full := more[:0]
		for n, i := range more {
			others := len(more) - n
			part := len(lists[i]) + (left+others-1)/others
			list, err := fleet.Tombstones(f.Machine.View(r), moraine.DeviceID(devices[i]), now-grace, part)
			if err != nil {
				return nil, err
			}
			kept, err := f.Horizon.keptDeletions(r, devices[i], now, part-len(list))
			if err != nil {
				return nil, err
			}
			list = append(list, kept...)
			left -= len(list) - len(lists[i])
			lists[i] = list
			if len(list) == part {
				full = append(full, i)
			}
		}
		more = full
	}
	return slices.Concat(lists...), nil
}

// DeletedChunks removes the tombstones of deletions that a host carried out on its own devices.
func (f *Fleet) DeletedChunks(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	v := f.Topology.View()
	deleted := c.Req.GetDeletedChunks().GetDeleted()
	for _, d := range deleted {
		if err := v.MayReport(c, d.Device); err != nil {
			return nil, err
		}
	}
	// Record this before the tombstones go, otherwise a plan made in between would count the bytes
	// as live.
	var bytes map[uint32]uint64
	err := f.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		bytes, err = fleet.FreedBytes(f.Machine.View(r), deleted)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.Topology.deleted(c.Caller.Node, bytes, f.Clock.Now())
	return f.Mutate(ctx, c)
}

// MayReport fails unless the caller may report on device.
func (v *View) MayReport(c *lead.Call, device uint32) error {
	if c.Caller.Role != string(transport.RoleAdmin) && !v.onHost(device, c.Caller.Node) {
		return lead.Denied("device %d is not one of node %q", device, c.Caller.Node)
	}
	return nil
}

// mayRegister fails unless a chunkserver may register the devices that it names. A device in
// service on another host belongs to that host while the host is up. A disk may be carried once it
// is out or its host is down. Reporting a device as broken does not claim it.
func (v *View) mayRegister(c *lead.Call, host string) error {
	if c.Caller.Role == string(transport.RoleAdmin) {
		return nil
	}
	claimed := make(map[string]bool)
	for _, d := range c.Req.GetRegisterHost().GetHost().GetDevices() {
		if d.State != wire.DeviceState_DEVICE_STATE_OUT {
			claimed[string(d.Uuid)] = true
		}
	}
	for _, h := range v.Wire.Hosts {
		if h.Id == host || !h.Alive {
			continue
		}
		for _, d := range h.Devices {
			if claimed[string(d.Uuid)] && holds(d) && d.State != wire.DeviceState_DEVICE_STATE_OUT {
				return &moraine.Error{Ref: host, Kind: moraine.Busy, Err: fmt.Errorf("host %s, which is up, has device %d: set it out (`moraine device set %d out`), or stop that host, before you move the disk", h.Id, d.Id, d.Id)}
			}
		}
	}
	return nil
}

// LoadHosts loads the hosts and devices from the state. hostsLoad makes the read and the load one
// step. Otherwise an older read, loaded late, could replace a newer one, and a new host would be
// missing until the next change of any host.
func (f *Fleet) LoadHosts() error {
	f.hostsLoad.Lock()
	defer f.hostsLoad.Unlock()
	var hosts []*wire.Host
	err := f.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		hosts, err = fleet.Hosts(f.Machine.View(r))
		return err
	})
	if err == nil {
		f.Topology.Load(hosts, f.Clock.Now())
		f.leader.RepairsChanged()
	}
	return err
}

// FollowDevices updates the topology whenever hosts or devices change in the state, until ctx ends.
func (f *Fleet) FollowDevices(ctx context.Context) {
	for {
		select {
		case <-f.HostsRead:
		case <-ctx.Done():
			return
		}
		if err := f.LoadHosts(); err != nil {
			f.Log.Error("could not read the hosts", "err", err)
		}
	}
}

// JudgeHosts finds the hosts that became silent or returned, and takes devices out or brings them
// in.
func (f *Fleet) JudgeHosts(ctx context.Context, now time.Time) error {
	before := f.Topology.View()
	f.avoidUnreachable(before, now)
	changes := f.Topology.Judge(now, f.cfg.RepairGrace, f.ClusterTime())
	v := f.Topology.View()
	if v.Wire.Version != before.Wire.Version {
		f.leader.RepairsChanged()
	}
	f.CountHosts(v)
	for _, set := range changes[:min(len(changes), maxDeviceChanges)] {
		if err := f.setDevice(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// CountHosts sets the metrics of hosts.
func (f *Fleet) CountHosts(v *View) {
	f.endpoints.arrange(v, f.leader.Reachable())
	f.bucketHealths.forget(v)
	f.suspects.forget(v)
	f.countTrouble(v)
	m := f.Metrics
	m.LiveHosts.Set(float64(v.reporting))
	m.UnknownHosts.Set(float64(v.Live - v.reporting))
	m.UnreportedDevices.Set(float64(v.unreported()))
	m.SilentHosts.Set(float64(len(v.Wire.Hosts) - v.Live))
}

// setDevice changes the state of a device by the leader's own decision.
func (f *Fleet) setDevice(ctx context.Context, set *wire.SetDeviceState) error {
	_, err := f.Command(ctx, &statepb.Command{Op: &statepb.Command_Request{Request: &wire.MetaRequest{
		Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: set}}}})
	if err != nil {
		return err
	}
	if set.State == wire.DeviceState_DEVICE_STATE_OUT {
		f.Metrics.DevicesOut.Inc()
	}
	f.Log.Warn("device changed state", "device", set.Device, "state", set.State, "reason", set.Reason)
	return nil
}

// SettleChunks records where a device's chunks are that were in memory.
func (f *Fleet) SettleChunks(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := f.Topology.View().MayReport(c, c.Req.GetSettleChunks().GetDevice()); err != nil {
		return nil, err
	}
	return f.Mutate(ctx, c)
}

// inMemory returns those of the devices that have chunks recorded as only in memory.
func (f *Fleet) inMemory(r kvtx.Reader, devices []uint32) (out []uint32, err error) {
	for _, d := range devices {
		some, err := fleet.InMemory(f.Machine.View(r), moraine.DeviceID(d))
		if err != nil {
			return nil, err
		}
		if some {
			out = append(out, d)
		}
	}
	return out, nil
}
