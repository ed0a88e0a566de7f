package metadata_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func (c *cluster) away(host string, length time.Duration, force bool) error {
	_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_SetMaintenance{SetMaintenance: &wire.SetMaintenance{
		Host: host, Millis: uint64(length.Milliseconds()), Force: force}}})
	synctest.Wait()
	return err
}

func (c *cluster) cluster() *wire.ClusterReply {
	c.t.Helper()
	resp, err := c.do(peer(transport.RoleClient, "c1"), &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(c.t, err)
	return resp.GetCluster()
}

// A host announced to be away is not declared dead for that time, and takes nothing new. It is
// declared dead when it stays away longer.
func TestMaintenanceKeepsAHost(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.RepairGrace = 30 * time.Second }, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		k.write("f", nil)
		c.pass(2*time.Second, nodes...)
		id := nodes[2].devices[0].Id
		require.NoError(t, c.away("n3", 5*time.Minute, false))
		g, err := k.grant(50, nil)
		require.NoError(t, err)
		for _, p := range g.Placements {
			require.NotContains(t, p.Devices, id, "a host that will be away takes nothing new")
		}
		c.pass(2*time.Minute, without(nodes, 2)...)
		c.elect("m2") // the announcement is in the state, not only in a leader's memory
		c.pass(2*time.Minute, without(nodes, 2)...)
		require.Equal(t, in, c.device(id).State)
		c.pass(2*time.Minute, without(nodes, 2)...)
		require.Equal(t, out, c.device(id).State, "it stayed away for longer than it said")

		nodes[2].again()
		c.pass(3*time.Second, nodes...)
		require.NoError(t, c.away("n3", 5*time.Minute, false))
		c.pass(40*time.Second, without(nodes, 2)...)
		nodes[2].again() // it has booted: the announcement is over
		c.pass(40*time.Second, without(nodes, 2)...)
		require.Equal(t, out, c.device(id).State)
	})
}

// An announcement is refused if it would leave a stripe without a chunk to spare, counting silent
// hosts and those that are away. A client cannot make one.
func TestMaintenanceLeavesRedundancy(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		for i := range 3 {
			k.write(fmt.Sprintf("f%d", i), nil) // 4+2, on all six
		}
		c.pass(2*time.Second, nodes...)
		require.NoError(t, c.away("n1", time.Minute, false))
		err := c.away("n2", time.Minute, false)
		require.ErrorIs(t, err, moraine.Conflict)
		require.ErrorContains(t, err, "3 stripes would be left without redundancy")
		require.ErrorContains(t, err, "n1 is away")
		require.NoError(t, c.away("n2", time.Minute, true), "a person may insist")
		require.NoError(t, c.away("n2", 0, false))
		require.NoError(t, c.away("n1", 0, false))
		c.pass(6*time.Second, nodes[1:]...)
		require.ErrorIs(t, c.away("n2", time.Minute, false), moraine.Conflict, "n1 is silent")
		require.NoError(t, c.away("n1", time.Minute, false), "it is away already")
		_, err = c.do(peer(transport.RoleClient, "c1"), &wire.MetaRequest{Op: &wire.MetaRequest_SetMaintenance{
			SetMaintenance: &wire.SetMaintenance{Host: "n1", Millis: 1000}}})
		require.ErrorIs(t, err, moraine.PermissionDenied)
	})
}

// Chunks known to be corrupt, or lost with their host's memory, cannot be spared: a host whose
// absence would leave only the needed chunks must stay.
func TestMaintenanceCountsNoBadChunks(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		s := k.write("f", nil) // 4+2, on all six
		c.pass(2*time.Second, nodes...)
		at := func(index int) string {
			return nodes[slices.IndexFunc(nodes, func(n *node) bool { return n.devices[0].Id == s.Chunks[index].Device })].id
		}
		require.NoError(t, c.away(at(0), time.Minute, false))
		require.NoError(t, c.away(at(0), 0, false))
		_, err := k.c.verified(badChunk(s, 3))
		require.NoError(t, err)
		err = c.away(at(0), time.Minute, false)
		require.ErrorIs(t, err, moraine.Conflict)
		require.ErrorContains(t, err, "1 stripe would be left without redundancy (of 1 that it has chunks of), as chunks of 1 stripe are lost or corrupt and wait for repair")
		require.NoError(t, c.away(at(3), time.Minute, false), "its own chunk is the bad one: it takes none with it that is good")
	})
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		g, err := k.grant(1, nil)
		require.NoError(t, err)
		k.commitAt("f", g.Placements[0], func(s *wire.ChunkState) { s.Level, s.Epoch = uint32(moraine.Memory), 1 })
		c.pass(2*time.Second, nodes...)
		require.NoError(t, c.away("n1", time.Minute, false))
		require.NoError(t, c.away("n1", 0, false))
		nodes[3].again() // the memory of its earlier boot is gone
		c.pass(2*time.Second, nodes...)
		require.ErrorIs(t, c.away("n1", time.Minute, false), moraine.Conflict)
	})
}

// A new leader does not know which hosts are down. It permits no absence before it has received a
// heartbeat from every other host, or its silence has lasted.
func TestMaintenanceWaitsForANewLeader(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		c.open(peer(transport.RoleClient, "c1")).write("f", nil)
		c.pass(2*time.Second, nodes...)
		c.pass(5*time.Second, nodes[:5]...)
		require.ErrorIs(t, c.away("n1", time.Minute, false), moraine.Conflict, "n6 is down")
		c.elect("m2")
		err := c.away("n1", time.Minute, false)
		require.ErrorIs(t, err, moraine.Unavailable)
		require.ErrorContains(t, err, "n2, n3, n4, n5, n6 may be down")
		c.pass(time.Second, nodes[:5]...)
		err = c.away("n1", time.Minute, false)
		require.ErrorIs(t, err, moraine.Unavailable)
		require.ErrorContains(t, err, "and n6 may be down")
		c.pass(5*time.Second, nodes[:5]...)
		require.ErrorIs(t, c.away("n1", time.Minute, false), moraine.Conflict)
		c.pass(time.Second, nodes...)
		require.NoError(t, c.away("n1", time.Minute, false))
		c.elect("m3")
		require.NoError(t, c.away("n2", time.Minute, true), "a person may insist")
	})
}

// The status shows the progress of a repair: how much is done and left, and how long it takes.
func TestHealingIsReported(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		require.Nil(t, c.cluster().Healing)
		var bad []*wire.Stripe
		for i := range 4 {
			bad = append(bad, k.write(fmt.Sprintf("f%d", i), nil))
		}
		for _, s := range bad {
			_, err := k.c.verified(badChunk(s, 1))
			require.NoError(t, err)
		}
		c.pass(3*time.Second, nodes...)
		h := c.cluster().Healing
		require.EqualValues(t, 4, h.Total)
		require.Zero(t, h.Done)
		require.Zero(t, h.EtaMillis, "nothing was done, so that nobody knows")
		for range 2 {
			c.pass(2*time.Second, nodes...)
			jobs := nodes[0].lease(0)
			require.Len(t, jobs, 1)
			for _, task := range jobs[0].Repairs {
				_, err := nodes[0].ask(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
					Job: jobs[0].Id, LeaseEpoch: jobs[0].LeaseEpoch, Intents: task.Intents}}})
				require.NoError(t, err)
			}
			_, err := nodes[0].ask(finish(jobs[0]))
			require.NoError(t, err)
		}
		c.pass(2*time.Second, nodes...)
		h = c.cluster().Healing
		require.NotNil(t, h)
		require.Positive(t, h.Done)
		require.Less(t, h.Done, uint64(4))
		require.EqualValues(t, 4, h.Total)
		require.Positive(t, h.EtaMillis)
		require.Positive(t, h.BytesPerSecond)
	})
}

// A draining host takes nothing new. Once it is empty and removed, its absence has no effect.
func TestRemovedHostIsNotMissed(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		set := func(to wire.DeviceState) error {
			_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{
				SetHostState: &wire.SetHostState{Host: "n7", State: to}}})
			synctest.Wait()
			return err
		}
		require.NoError(t, set(wire.DeviceState_DEVICE_STATE_DRAINING))
		g, err := c.open(peer(transport.RoleClient, "c1")).grant(50, nil)
		require.NoError(t, err)
		for _, p := range g.Placements {
			require.NotContains(t, p.Devices, nodes[6].devices[0].Id)
		}
		require.NoError(t, set(wire.DeviceState_DEVICE_STATE_RETIRED))
		c.pass(6*time.Second, nodes[:6]...)
		require.Len(t, c.topology().Hosts, 6)
	})
}

// A draining host is not empty while one of its devices is out and stripes still have chunks there.
func TestDevicesThatAreOutCountToADrain(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		dev := k.write("f", nil).Chunks[0].Device
		host := nodes[0].id
		for _, n := range nodes {
			if n.devices[0].Id == dev {
				host = n.id
			}
		}
		for _, req := range []*wire.MetaRequest{
			{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: dev, State: out}}},
			{Op: &wire.MetaRequest_SetHostState{SetHostState: &wire.SetHostState{Host: host, State: wire.DeviceState_DEVICE_STATE_DRAINING}}},
		} {
			_, err := c.do(peer(transport.RoleAdmin, "ops"), req)
			require.NoError(t, err)
		}
		for _, h := range c.cluster().Topology.Hosts {
			if h.Id == host {
				require.EqualValues(t, 1, h.Devices[0].Claimed)
				require.Equal(t, out, h.Devices[0].State)
			}
		}
	})
}

// The leader also drains a device that is slow only for reads. It drains no idle device, none with
// too few operations, and none with longer reads than its peers.
func TestDeviceThatIsSlowToReadIsTakenOut(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		beat := func(odd, others []uint64, d time.Duration) {
			for range int(d / time.Second) {
				for i, n := range nodes {
					dev, reads := n.devices[0], others
					if i == 3 {
						reads = odd
					}
					_, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{
						Devices: []*wire.Device{{Id: dev.Id, Epoch: dev.Epoch, Capacity: dev.Capacity, State: in, PutMicros: 3000, ReadMicros: reads}}}}})
					require.NoError(t, err)
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
		}
		id := nodes[3].devices[0].Id
		beat(nil, []uint64{900, 0, 0, 9000}, time.Minute)
		require.Equal(t, in, c.device(id).State, "it has read nothing")
		beat([]uint64{0, 0, 0, 60_000}, []uint64{900}, time.Minute)
		require.Equal(t, in, c.device(id).State, "nobody else reads so much at a time")
		beat([]uint64{60_000, 1, 1, 1, 1, 1}, []uint64{60_000}, time.Minute)
		require.Equal(t, in, c.device(id).State, "all are slow")
		beat([]uint64{800, 60_000, 0}, []uint64{900, 5000, 5000}, 20*time.Second)
		beat([]uint64{800, 0, 60_000}, []uint64{900, 5000, 5000}, 20*time.Second)
		require.Equal(t, in, c.device(id).State, "not of one length for long enough")
		beat([]uint64{800, 0, 60_000}, []uint64{900, 0, 5000}, 40*time.Second)
		require.Equal(t, draining, c.device(id).State)
	})
}

// The leader permanently drains a device ten times slower than its peers for half a minute, but not
// one that is as slow as all the others.
func TestSlowDeviceIsTakenOut(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		beat := func(slow map[int]uint64, d time.Duration) {
			for range int(d / time.Second) {
				for i, n := range nodes {
					micros := uint64(3000)
					if m, ok := slow[i]; ok {
						micros = m
					}
					dev := n.devices[0]
					_, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{
						Devices: []*wire.Device{{Id: dev.Id, Epoch: dev.Epoch, Capacity: dev.Capacity, State: in, PutMicros: micros}}}}})
					require.NoError(t, err)
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
		}
		id := nodes[3].devices[0].Id
		beat(map[int]uint64{3: 25_000}, 2*time.Minute)
		require.Equal(t, in, c.device(id).State, "not ten times as slow")
		beat(map[int]uint64{0: 60_000, 1: 60_000, 2: 60_000, 3: 60_000, 4: 60_000}, 2*time.Minute)
		require.Equal(t, in, c.device(id).State, "most are slow")
		beat(map[int]uint64{3: 60_000}, 20*time.Second)
		beat(nil, 5*time.Second)
		beat(map[int]uint64{3: 60_000}, 20*time.Second)
		require.Equal(t, in, c.device(id).State, "not for long enough")
		beat(map[int]uint64{3: 60_000}, 20*time.Second)
		require.Equal(t, draining, c.device(id).State, "and its chunks are still sources")
		nodes[3].again()
		require.Equal(t, draining, c.device(id).State, "a start does not make it quicker")
		beat(map[int]uint64{5: 60_000}, 2*time.Minute)
		require.Equal(t, in, c.device(nodes[5].devices[0].Id).State, "one at a time")
		beat(map[int]uint64{5: 60_000}, 12*time.Minute)
		require.Equal(t, in, c.device(nodes[5].devices[0].Id).State, "a second of seven waits until a person has seen to the first")
		_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{
			SetDeviceState: &wire.SetDeviceState{Device: id, State: in, Reason: "by hand"}}})
		require.NoError(t, err)
		beat(map[int]uint64{3: 60_000}, 2*time.Minute)
		require.Equal(t, in, c.device(id).State, "a person knows better, for a day")
		beat(map[int]uint64{5: 60_000}, 40*time.Second)
		require.Equal(t, draining, c.device(nodes[5].devices[0].Id).State)
	})
}

// A scrub of an unknown device, or one that cannot be scrubbed, is refused with the device's name.
func TestScrubOfNoDeviceIsRefused(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		first, second := nodes[0].devices[0].Id, nodes[1].devices[0].Id
		start := func(host string, devices ...uint32) error {
			_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{
				StartScrub: &wire.StartScrub{Host: host, Devices: devices}}})
			return err
		}
		require.NoError(t, start("", first, second))
		require.NoError(t, start(nodes[0].id, first))
		err := start("", first, 99)
		require.ErrorIs(t, err, moraine.NotFound)
		require.ErrorContains(t, err, "device 99")
		require.ErrorIs(t, start(nodes[0].id, second), moraine.InvalidArgument)
		require.ErrorIs(t, start("nobody"), moraine.NotFound)
	})
}
