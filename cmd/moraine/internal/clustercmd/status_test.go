package clustercmd

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// sixHosts is a healthy cluster of six hosts, of which the first down ones are
// silent.
func sixHosts(down int, state wire.DeviceState) *wire.ClusterReply {
	c := &wire.ClusterReply{DefaultScheme: &wire.Scheme{K: 4, M: 2}, Topology: &wire.Topology{}, Check: &wire.StateCheck{Enabled: true, Done: true}}
	good := func(role, node string) *wire.EndpointHealth {
		c.Certificates = append(c.Certificates, &wire.ServerCertificate{Role: role, Node: node, Expires: 4e9, LeftSeconds: 1e8})
		return &wire.EndpointHealth{Tried: 3, Known: true}
	}
	for i := range 3 {
		id := fmt.Sprintf("m%d", i+1)
		c.Metadata = append(c.Metadata, &wire.MetadataNode{Id: id, Voter: true, Alive: true, Seen: true, Leader: i == 0, Endpoint: good("metadata", id)})
	}
	for i := range 6 {
		d := &wire.Device{Id: uint32(i + 1), State: wire.DeviceState_DEVICE_STATE_IN, Measured: true, Reported: true}
		if i < down {
			d.State = state
		}
		id := fmt.Sprintf("n%d", i+1)
		c.Topology.Hosts = append(c.Topology.Hosts, &wire.Host{Id: id, Alive: i >= down, Seen: i >= down, Devices: []*wire.Device{d}, Endpoint: good("chunkserver", id)})
	}
	return c
}

// draining is a cluster of six hosts, of which the first are drained.
func draining(hosts int) *wire.ClusterReply {
	c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
	for _, h := range c.Topology.Hosts[:hosts] {
		h.Devices[0].State = wire.DeviceState_DEVICE_STATE_DRAINING
	}
	return c
}

// fillDevices leaves the first full devices with less room than repair keeps.
func fillDevices(c *wire.ClusterReply, full int) *wire.ClusterReply {
	for i, h := range c.Topology.Hosts {
		d := h.Devices[0]
		d.Capacity, d.Used = 1<<40, 1<<39
		if i < full {
			d.Used = d.Capacity - d.Capacity/100
		}
	}
	return c
}

// TestStatusPromisesNoMoreThanItKnows compares the words of the status with the state of
// the cluster.
func TestStatusPromisesNoMoreThanItKnows(t *testing.T) {
	const whole, full = "2 hosts may be lost at once", "full protection of its scheme"
	for _, row := range []struct {
		name   string
		reply  *wire.ClusterReply
		health string
		says   []string
		not    []string
	}{
		{"healthy", sixHosts(0, wire.DeviceState_DEVICE_STATE_IN), healthGreen, []string{whole, full}, nil},
		{"two hosts down", sixHosts(2, wire.DeviceState_DEVICE_STATE_IN), healthDegraded,
			[]string{"host n1 is down", "less protection than 4+2 gives", "chunks on 2 hosts that are not known to be up", "2 hosts fewer"}, []string{whole, full}},
		{"a host is out and rebuilt", sixHosts(1, wire.DeviceState_DEVICE_STATE_OUT), healthDegraded,
			[]string{"device 1 of host n1 is out", full}, []string{whole}},
		{"a host has not been heard", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.Topology.Hosts[3].Seen = false
			return c
		}(), healthUnknown, []string{"it is not known yet whether host n4 is up", "as 5 hosts take chunks", "not known yet whether every stripe has the full protection of its scheme"},
			[]string{whole, "full protection of its scheme:"}},
		{"a device has not reported", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.Topology.Hosts[3].Devices[0].Reported = false
			return c
		}(), healthUnknown, []string{"it is not known yet whether chunks are missing on device 4 of host n4", whole}, []string{"full protection of its scheme:"}},
		{"a device has not said how full it is", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.Topology.Hosts[3].Devices[0].Measured = false
			return c
		}(), healthUnknown, []string{"it is not known yet how full device 4 of host n4 is"}, nil},
		{"a metadata server has not been heard", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.Metadata[1].Seen = false
			return c
		}(), healthUnknown, []string{"it is not known yet whether metadata server m2 is up", "it is not known yet how many metadata servers may be lost"}, []string{"metadata goes on"}},
		{"nothing is known", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			for _, h := range c.Topology.Hosts {
				h.Seen, h.Devices[0].Reported, h.Devices[0].Measured = false, false, false
			}
			return c
		}(), healthUnknown, []string{"it is not known yet whether host n1 is up", "no host takes chunks (6 unknown)"}, []string{whole, "full protection of its scheme:"}},
		{"stripes wait for repair", func() *wire.ClusterReply {
			c := sixHosts(1, wire.DeviceState_DEVICE_STATE_OUT)
			c.RepairQueued, c.StripesBySpare = 3, []uint64{0, 3}
			return c
		}(), healthDegraded, []string{"3 stripes are not fully protected", "(3) survive the loss of 1 more host"}, []string{whole, full}},
		{"stripes are lost", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.LostStripes = 1
			return c
		}(), healthCritical, []string{"1 stripe has fewer chunks left"}, []string{full}},
		{"a metadata server is down", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.Metadata[2].Alive = false
			return c
		}(), healthCritical, []string{"m3 is down", "metadata stops if one more"}, nil},
		{"a device is full", fillDevices(sixHosts(0, wire.DeviceState_DEVICE_STATE_IN), 1), healthDegraded,
			[]string{"device 1 of host n1 is full", "less protection than 4+2 gives, as 5 hosts take chunks and have room", full}, []string{whole}},
		{"every device is full", fillDevices(sixHosts(0, wire.DeviceState_DEVICE_STATE_IN), 6), healthDegraded,
			[]string{"device 6 of host n6 is full", "nothing new can be written"}, []string{whole}},
		{"a host is drained", func() *wire.ClusterReply {
			c := draining(1)
			c.RepairQueued, c.StripesBySpare, c.Waits = 8, []uint64{0, 0, 8}, &wire.RepairWaits{Counted: 8, Drain: 8}
			return c
		}(), healthGreen, []string{"8 stripes are to be moved off devices that are drained, with full protection", "as 5 hosts take chunks (1 draining)"},
			[]string{"not fully protected", "survive the loss"}},
		{"a drain has nowhere to go", func() *wire.ClusterReply {
			c := draining(1)
			c.RepairQueued, c.StripesBySpare, c.Waits = 8, []uint64{0, 0, 8}, &wire.RepairWaits{Counted: 8, Drain: 8, NoHost: 8}
			return c
		}(), healthDegraded, []string{"8 stripes wait as there is no host for their chunks"}, []string{"not fully protected", "survive the loss"}},
		{"repairs have no room", func() *wire.ClusterReply {
			c := sixHosts(1, wire.DeviceState_DEVICE_STATE_OUT)
			c.RepairQueued, c.StripesBySpare, c.Waits = 5, []uint64{0, 3, 2}, &wire.RepairWaits{Counted: 5, LostDevice: 3, Drain: 2, NoRoom: 3}
			return c
		}(), healthDegraded, []string{"3 stripes are not fully protected and wait for repair, and 2 wait to be moved", "3 lost a device, 2 whole and being drained",
			"3 stripes wait as no other host has room", "(3) survive the loss of 1 more host"}, []string{full}},
		{"more wait than are counted", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.RepairQueued, c.Waits = 9000, &wire.RepairWaits{Counted: 4096, More: true, Drain: 4000, Corrupt: 96}
			return c
		}(), healthDegraded, []string{"9000 stripes wait for repair, or to be moved (0 on their way): of the first 4096: 96 corrupt, 4000 whole and being drained"}, []string{full}},
		{"all hosts are drained", draining(6), healthDegraded, []string{"nothing new can be written: no host takes chunks (6 draining)"}, []string{"hosts are up"}},
		{"a host that is up is announced to be away", func() *wire.ClusterReply {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			c.Topology.Hosts[2].MaintenanceUntil = 60_000
			return c
		}(), healthGreen, []string{"host n3 is up and announced to be away (maintenance, 1m0s left)", "as 5 hosts take chunks (1 announced to be away)"}, []string{whole}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := judge(row.reply)
			require.Equal(t, row.health, s.Health)
			text := strings.Join(slices.Concat(s.Findings, s.Survives, s.Notes), "\n")
			for _, want := range row.says {
				require.Contains(t, text, want)
			}
			for _, not := range row.not {
				require.NotContains(t, text, not)
			}
		})
	}
}

// Scripts get empty lists, never null.
func TestEmptyStatusHasNoNull(t *testing.T) {
	b, err := json.Marshal(judge(&wire.ClusterReply{}))
	require.NoError(t, err)
	require.NotContains(t, string(b), "null")
}

// Where stripes may be copies because too few hosts were up, the status says that they stay
// so, as nothing rewrites them.
func TestStatusTellsOfCopiesThatStay(t *testing.T) {
	c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
	require.Contains(t, strings.Join(judge(c).Survives, "\n"), "copies (x2)")
	c.DefaultScheme = &wire.Scheme{K: 1, M: 2}
	require.NotContains(t, strings.Join(judge(c).Survives, "\n"), "copies (x2)")
}

// TestRebalanceIsNoFault: the status mentions unevenly filled devices, and the cluster
// stays green.
func TestRebalanceIsNoFault(t *testing.T) {
	for state, want := range map[wire.RebalanceState]string{
		wire.RebalanceState_REBALANCE_STATE_MOVING:  "chunks are being moved: 3.0 GiB moved, about 9.0 GiB left, 100 MiB/s, about 1m33s to go",
		wire.RebalanceState_REBALANCE_STATE_PAUSED:  "paused (`moraine rebalance resume`)",
		wire.RebalanceState_REBALANCE_STATE_WAITING: "when repairs are done",
		wire.RebalanceState_REBALANCE_STATE_STUCK:   "add hosts",
	} {
		s := judge(&wire.ClusterReply{Rebalance: &wire.Rebalance{State: state, BandPermille: 50, MeanPermille: 400, EmptiestPermille: 20, FullestPermille: 451,
			Outside: 2, LeftBytes: 9 << 30, MovedBytes: 3 << 30, BytesPerSecond: 100 << 20, EtaMillis: 92_160}})
		require.Len(t, s.Notes, 1)
		require.Contains(t, s.Notes[0], "2 devices are filled unevenly (40.0% in the mean, 2.0% to 45.1%)")
		require.Contains(t, s.Notes[0], want)
		for _, f := range s.Findings {
			require.NotContains(t, f, "filled")
		}
	}
	require.Empty(t, judge(&wire.ClusterReply{Rebalance: &wire.Rebalance{State: wire.RebalanceState_REBALANCE_STATE_EVEN}}).Notes)
	require.Nil(t, judge(&wire.ClusterReply{}).Rebalance)
}

// TestDeadStripesAreNoFault: the status mentions dead bytes of stripes in use where they
// are a twentieth of them. The cluster stays green.
func TestDeadStripesAreNoFault(t *testing.T) {
	s := judge(&wire.ClusterReply{Rewriting: &wire.Rewriting{Rounds: 1, NamedBytes: 9 << 30, DeadBytes: 3 << 30, ChosenStripes: 40, ChosenBytes: 1 << 30}})
	require.Len(t, s.Notes, 1)
	require.Equal(t, "3.0 GiB of stripes in use are dead, beside 9.0 GiB that files name; 40 stripes are rewritten to free the rest (1.0 GiB written again)", s.Notes[0])
	require.EqualValues(t, 3<<30, s.Rewriting.Dead)
	for _, r := range []*wire.Rewriting{nil, {}, {Looking: true, NamedBytes: 1, DeadBytes: 9}, {NamedBytes: 100, DeadBytes: 5}} {
		require.Empty(t, judge(&wire.ClusterReply{Rewriting: r}).Notes)
	}
	s = judge(&wire.ClusterReply{Rewriting: &wire.Rewriting{Looking: true, NamedBytes: 9 << 30, ChosenFiles: 300, ChosenBytes: 3 << 20}})
	require.Equal(t, []string{"300 small files are packed with each other (3.0 MiB written again)"}, s.Notes)
	require.EqualValues(t, 300, s.Rewriting.Files)
}

// A cluster with files that have lost bytes is not green, though no stripe waits for
// repair.
func TestLostFilesAreNotGreen(t *testing.T) {
	s := judge(sixHosts(0, wire.DeviceState_DEVICE_STATE_IN))
	s.judgeLost(0)
	require.Equal(t, healthGreen, s.Health)
	s.judgeLost(2)
	require.Equal(t, healthCritical, s.Health)
	require.Contains(t, strings.Join(s.Findings, "\n"), "2 files have lost bytes: `moraine cluster lost`")
}

// The bytes of a device that is out or retired do not count as used.
func TestUsageIsOfDevicesInService(t *testing.T) {
	c := fillDevices(sixHosts(0, wire.DeviceState_DEVICE_STATE_IN), 0)
	c.Topology.Hosts[0].Devices[0].State = wire.DeviceState_DEVICE_STATE_OUT
	c.Topology.Hosts[1].Devices[0].State = wire.DeviceState_DEVICE_STATE_RETIRED
	s := judge(c)
	require.EqualValues(t, 4<<39, s.Used)
	require.EqualValues(t, 4<<40, s.Capacity)
}
