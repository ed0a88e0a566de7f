package metadata

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// maxDeviceChanges bounds the devices whose state one tick changes.
const maxDeviceChanges = 64

// registerHost records a host and its devices, and gives each its boot epoch.
func (l *leader) registerHost(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	host, err := c.Host()
	if err != nil {
		return nil, err
	}
	if c.Req.GetRegisterHost().GetHost() == nil {
		return nil, &moraine.Error{Ref: host, Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request describes no host")}
	}
	mark := l.topology.mark()
	asked := c.Req.GetRegisterHost()
	if err := l.topology.view().mayRegister(c, host); err != nil {
		return nil, err
	}
	if err := l.checkReportedIncarnation(host, transport.MarkedIncarnation(asked.HeardIncarnation, asked.HeardMark)); err != nil {
		return nil, err
	}
	req := proto.CloneOf(c.Req)
	req.GetRegisterHost().Host.Id = host
	req.GetRegisterHost().HeardIncarnation, req.GetRegisterHost().HeardMark = 0, nil // nothing that the log needs
	l.topology.boots(host, asked.GetHost().GetDevices())
	l.endpoints.booted(host)
	resp, err := l.Propose(ctx, c.Caller, req)
	if err != nil || resp.GetError() != nil {
		return resp, err
	}
	if err := l.loadHosts(); err != nil {
		return nil, err
	}
	l.topology.noteHeartbeat(host, nil, mark, l.Clock.Now())
	reply := resp.GetRegisterHost()
	reply.Cluster, reply.Incarnation, reply.Mark = l.Cluster.UUID[:], uint64(l.Cluster.Incarnation), l.mark()
	reply.Keys, reply.GraceMillis = l.tokens.public(), uint64(l.cfg.Grace.Milliseconds())
	return resp, nil
}

// heartbeat notes that a host is alive and tells it what to delete: what has
// been dead for longer than the grace, in a state that this server has just
// proved to be current.
func (l *leader) heartbeat(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	host, err := c.Host()
	if err != nil {
		return nil, err
	}
	mark := l.topology.mark()
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	asked := c.Req.GetHeartbeat()
	if err := l.checkReportedIncarnation(host, transport.MarkedIncarnation(asked.HeardIncarnation, asked.HeardMark)); err != nil {
		return nil, err
	}
	known := l.topology.noteHeartbeat(host, asked.Devices, mark, l.Clock.Now())
	v := l.topology.view()
	now := l.Clock.Now()
	l.certificates.saw(c.Peer, now)
	if v.hosts[host] != nil {
		l.bucketHealths.note(host, asked.Bucket, now)
	}
	reply := &wire.HeartbeatReply{Probe: l.endpoints.noteProbes(host, asked.Probes, now), WatchBucket: v.watches(host), Keys: l.tokens.public(), TopologyVersion: v.wire.Version, Register: !known,
		Incarnation: uint64(l.Cluster.Incarnation), Mark: l.mark()}
	revoked := l.server.revoked.Load()
	if reply.RevokedVersion = revoked.Version(); reply.RevokedVersion != asked.RevokedVersion {
		reply.Revoked = revoked.List()
	}
	var devices, working []uint32
	var own []*wire.Device // what the host says of others' devices counts for nothing
	for _, d := range asked.Devices {
		have := v.devices[d.Id]
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
			if d.State != wire.DeviceState_DEVICE_STATE_OUT { // else it can delete nothing
				working = append(working, d.Id)
			}
		}
	}
	reply.Scrub = l.scrubs.tell(own)
	limit := int(min(asked.MaxDeletions, state.MaxDeleted))
	err = l.Store.View(func(r state.Reader, applied uint64) (err error) {
		reply.Applied = applied
		if reply.Deletions, err = l.deletions(r, working, limit); err != nil {
			return err
		}
		if h := v.hosts[host]; h != nil {
			answers := asked.Bucket.GetTried() && asked.Bucket.GetError() == ""
			if reply.CheckObjects, err = l.objects.give(r, l.Machine, host, h.Bucket, answers, l.Began, now); err != nil {
				return err
			}
		}
		info, err := l.Machine.Cluster(r)
		if err != nil || info.FeatureLevel < state.LevelMemory {
			return err
		}
		reply.MemoryLevel = true
		reply.Memory, err = l.inMemory(r, devices)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.Metrics.Deletions.Add(float64(len(reply.Deletions)))
	return &wire.MetaResponse{Result: &wire.MetaResponse_Heartbeat{Heartbeat: reply}}, nil
}

// deletions returns at most limit deletions for devices, of what has been dead
// for longer than the grace, or the backup horizon; none before every device has reported since the metadata was
// restored. Each device has an equal part of them, and what one
// needs no part of the others have: no device, and none that is slow, keeps the
// others from theirs.
func (l *leader) deletions(r state.Reader, devices []uint32, limit int) ([]*wire.Deletion, error) {
	now, err := l.Machine.ClusterTime(r)
	grace := uint64(l.cfg.Grace.Milliseconds())
	if err != nil || now <= grace {
		return nil, err
	}
	if waits, err := l.reportsAwaited(r); err != nil || waits {
		return nil, err
	}
	left, lists := limit, make([][]*wire.Deletion, len(devices))
	more := make([]int, len(devices)) // those that may have more than they got
	for i := range devices {
		more[i] = i
	}
	for len(more) > 0 && left > 0 {
		full := more[:0]
		for n, i := range more {
			others := len(more) - n
			part := len(lists[i]) + (left+others-1)/others
			list, err := l.Machine.Tombstones(r, moraine.DeviceID(devices[i]), now-grace, part)
			if err != nil {
				return nil, err
			}
			kept, err := l.keptDeletions(r, devices[i], now, part-len(list))
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

// deletedChunks forgets the tombstones of deletions that a host carried out on
// its own devices.
func (l *leader) deletedChunks(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	v := l.topology.view()
	deleted := c.Req.GetDeletedChunks().GetDeleted()
	for _, d := range deleted {
		if err := v.mayReport(c, d.Device); err != nil {
			return nil, err
		}
	}
	// Before the tombstones go, for a plan between the two would take what is on the
	// devices for alive.
	var bytes map[uint32]uint64
	err := l.Store.View(func(r state.Reader, _ uint64) (err error) {
		bytes, err = l.Machine.FreedBytes(r, deleted)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.topology.deleted(c.Caller.Node, bytes, l.Clock.Now())
	return l.Mutate(ctx, c)
}

// mayReport is whether the caller may speak of what is on device.
func (v *topologyView) mayReport(c *lead.Call, device uint32) error {
	if c.Caller.Role != string(transport.RoleAdmin) && !v.onHost(device, c.Caller.Node) {
		return lead.Denied("device %d is not one of node %q", device, c.Caller.Node)
	}
	return nil
}

// mayRegister is whether a chunkserver may register the devices that it names. A device that
// is in service on another host is that host's as long as the host is up: a disk is carried
// once it is out, or its host is down. Who registers a device that it takes to be broken does
// not claim it.
func (v *topologyView) mayRegister(c *lead.Call, host string) error {
	if c.Caller.Role == string(transport.RoleAdmin) {
		return nil
	}
	claimed := make(map[string]bool)
	for _, d := range c.Req.GetRegisterHost().GetHost().GetDevices() {
		if d.State != wire.DeviceState_DEVICE_STATE_OUT {
			claimed[string(d.Uuid)] = true
		}
	}
	for _, h := range v.wire.Hosts {
		if h.Id == host || !h.Alive {
			continue
		}
		for _, d := range h.Devices {
			if claimed[string(d.Uuid)] && holds(d) && d.State != wire.DeviceState_DEVICE_STATE_OUT {
				return &moraine.Error{Ref: host, Kind: moraine.Busy, Err: fmt.Errorf("host %s, which is up, has device %d: take it out there (`moraine device set %d out`), or stop that host, before its disk is carried", h.Id, d.Id, d.Id)}
			}
		}
	}
	return nil
}

// loadHosts takes over the hosts and devices of the state. One read and its takeover are
// one step: without hostsLoad an older read, taken over late, would replace a newer one, and
// a host registered meanwhile would be missing until the next change of any host.
func (l *leader) loadHosts() error {
	l.hostsLoad.Lock()
	defer l.hostsLoad.Unlock()
	var hosts []*wire.Host
	err := l.Store.View(func(r state.Reader, _ uint64) (err error) {
		hosts, err = l.Machine.Hosts(r)
		return err
	})
	if err == nil {
		l.topology.load(hosts, l.Clock.Now())
		l.repairs.Set()
	}
	return err
}

// followDevices brings the topology up to date whenever hosts or devices change
// in the state, until ctx ends.
func (l *leader) followDevices(ctx context.Context) {
	for {
		select {
		case <-l.hostsRead:
		case <-ctx.Done():
			return
		}
		if err := l.loadHosts(); err != nil {
			l.Log.Error("could not read the hosts", "err", err)
		}
	}
}

// judgeHosts finds out which hosts fell silent and which came back, and
// declares devices out of service and in again.
func (l *leader) judgeHosts(ctx context.Context, now time.Time) error {
	before := l.topology.view()
	l.avoidUnreachable(before, now)
	changes := l.topology.judge(now, l.cfg.RepairGrace, l.ClusterTime())
	v := l.topology.view()
	if v.wire.Version != before.wire.Version {
		l.repairs.Set()
	}
	l.countHosts(v)
	if slices.ContainsFunc(changes, v.endsDrain) && l.Speaks(ctx, state.LevelSilentDrains) != nil {
		changes = slices.DeleteFunc(changes, v.endsDrain)
	}
	for _, set := range changes[:min(len(changes), maxDeviceChanges)] {
		if err := l.setDevice(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// countHosts sets the metrics of hosts.
func (l *leader) countHosts(v *topologyView) {
	l.endpoints.arrange(v, l.server.reachable())
	l.bucketHealths.forget(v)
	l.countTrouble(v)
	m := l.Metrics
	m.LiveHosts.Set(float64(v.reporting))
	m.UnknownHosts.Set(float64(v.live - v.reporting))
	m.UnreportedDevices.Set(float64(v.unreported()))
	m.SilentHosts.Set(float64(len(v.wire.Hosts) - v.live))
}

// endsDrain reports whether a change takes a device out that is drained, for the silence of
// its host.
func (v *topologyView) endsDrain(set *wire.SetDeviceState) bool {
	d := v.devices[set.Device]
	return d != nil && d.State == deviceDraining && set.Reason == reasonSilent
}

// setDevice changes the state of a device on the leader's own word.
func (l *leader) setDevice(ctx context.Context, set *wire.SetDeviceState) error {
	_, err := l.Command(ctx, &statepb.Command{Op: &statepb.Command_Request{Request: &wire.MetaRequest{
		Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: set}}}})
	if err != nil {
		return err
	}
	if set.State == wire.DeviceState_DEVICE_STATE_OUT {
		l.Metrics.DevicesOut.Inc()
	}
	l.Log.Warn("device changed state", "device", set.Device, "state", set.State, "reason", set.Reason)
	return nil
}
