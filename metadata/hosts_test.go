package metadata_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// node is a chunkserver as the service sees it.
type node struct {
	c       *cluster
	id      string
	devices []*wire.Device
	failed  bool // it took its devices out
	bucket  string
	expires time.Time                        // expiry of its certificate; zero: none
	probes  []*wire.ProbeTarget              // its latest targets
	finds   func(target string) (err string) // its probe results; nil: it probes nobody
	says    func(hb *wire.Heartbeat)         // adds to its heartbeats
}

// register makes a chunkserver known, with n devices.
func (c *cluster) register(id string, n int) *node {
	c.t.Helper()
	h := &node{c: c, id: id}
	for i := range n {
		var uuid moraine.UUID
		copy(uuid[:], fmt.Sprintf("%s/%d", id, i))
		h.devices = append(h.devices, &wire.Device{Uuid: uuid[:], Capacity: 1 << 40})
	}
	h.again()
	return h
}

// again registers the host again, as after a boot.
func (h *node) again() {
	h.c.t.Helper()
	for _, d := range h.devices {
		if d.Epoch, d.State = 0, in; h.failed {
			d.State = out
		}
	}
	resp, err := h.c.do(peer(transport.RoleChunkserver, h.id), &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{
		RegisterHost: &wire.RegisterHost{Host: &wire.Host{Addresses: []string{h.id + ":9000"}, Devices: h.devices, Bucket: h.bucket}}}})
	require.NoError(h.c.t, err)
	reply := resp.GetRegisterHost()
	require.Equal(h.c.t, clusterUUID[:], reply.Cluster)
	require.NotEmpty(h.c.t, reply.Keys)
	h.devices = reply.Devices
}

func (h *node) beat() *wire.HeartbeatReply {
	h.c.t.Helper()
	hb := &wire.Heartbeat{MaxDeletions: 100}
	for _, d := range h.devices {
		beat := &wire.Device{Id: d.Id, Epoch: d.Epoch, Capacity: d.Capacity, Used: d.Used, State: in}
		if h.failed {
			beat.State = out
		}
		hb.Devices = append(hb.Devices, beat)
	}
	for _, p := range h.probes {
		if h.finds != nil {
			hb.Probes = append(hb.Probes, &wire.Probe{Role: p.Role, Node: p.Node, Mark: p.Mark, Error: h.finds(p.Node)})
		}
	}
	if h.says != nil {
		h.says(hb)
	}
	as := peer(transport.RoleChunkserver, h.id)
	as.NotAfter = h.expires
	resp, err := h.c.do(as, &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: hb}})
	require.NoError(h.c.t, err)
	h.probes = resp.GetHeartbeat().Probe
	return resp.GetHeartbeat()
}

// fleet registers n chunkservers with one device each, n1..
func (c *cluster) fleet(n int) []*node {
	c.t.Helper()
	var out []*node
	for i := range n {
		out = append(out, c.register(fmt.Sprintf("n%d", i+1), 1))
	}
	return out
}

// pass lets time pass, with a heartbeat of each node per second, and returns when the service's own
// work of that moment is done.
func (c *cluster) pass(d time.Duration, nodes ...*node) {
	c.t.Helper()
	for range int(d / time.Second) {
		for _, n := range nodes {
			n.beat()
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

func (c *cluster) topology() *wire.Topology {
	c.t.Helper()
	resp, err := c.do(peer(transport.RoleClient, "c1"), &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}})
	require.NoError(c.t, err)
	return resp.GetTopology()
}

func (c *cluster) device(id uint32) *wire.Device {
	c.t.Helper()
	for _, h := range c.topology().Hosts {
		for _, d := range h.Devices {
			if d.Id == id {
				return d
			}
		}
	}
	c.t.Fatalf("no device %d", id)
	return nil
}

func (k *client) grant(count uint32, scheme *wire.Scheme) (*wire.GrantReply, error) {
	resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: root, Count: count, Scheme: scheme, ChunkLength: 4 << 20}}})
	return resp.GetGrant(), err
}

func without(nodes []*node, i int) []*node {
	return append(append([]*node(nil), nodes[:i]...), nodes[i+1:]...)
}

func TestPlacementAvoidsSuspectHosts(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		c.pass(2*time.Second, nodes...)
		before := c.topology().Version
		c.pass(5*time.Second, without(nodes, 2)...)
		top := c.topology()
		require.Greater(t, top.Version, before)
		for _, h := range top.Hosts {
			require.Equal(t, h.Id != "n3", h.Alive, h.Id)
		}
		g, err := k.grant(50, nil)
		require.NoError(t, err)
		require.Len(t, g.Placements, 50)
		for i, p := range g.Placements {
			require.Equal(t, g.First+uint64(i), p.Stripe)
			require.Equal(t, uint32(4), p.Scheme.K)
			require.Equal(t, uint32(2), p.Protects)
			require.NotContains(t, p.Devices, nodes[2].devices[0].Id)
		}
		resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Place{Place: &wire.Place{
			Stripes: []uint64{g.First}, Avoid: []uint32{1}, Keep: append([]uint32{0}, g.Placements[0].Devices[1:]...), Scheme: g.Placements[0].Scheme}}})
		require.NoError(t, err)
		require.Equal(t, g.Placements[0].Devices[1:], resp.GetPlace().Placements[0].Devices[1:])
		require.NotContains(t, resp.GetPlace().Placements[0].Devices[:1], uint32(1))

		nodes[2].beat()
		require.Greater(t, c.topology().Version, top.Version)
		g, err = k.grant(50, nil)
		require.NoError(t, err)
		used := false
		for _, p := range g.Placements {
			for _, d := range p.Devices {
				used = used || d == nodes[2].devices[0].Id
			}
		}
		require.True(t, used, "a host that is back is placed on again")
	})
}

func TestTooFewHostsGetNoGrant(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		c.pass(5*time.Second, nodes[0])
		last := func() uint64 { return nodes[0].beat().Applied }
		before := last()
		_, err := k.grant(1, nil)
		require.ErrorIs(t, err, moraine.Unavailable)
		require.Equal(t, before, last(), "what cannot be placed is not worth an entry")
	})
}

// If two hosts must always be expendable, a cluster with one host down writes three copies instead
// of a 4+2 that can lose one.
func TestMinProtection(t *testing.T) {
	two := func(cfg *metadata.Config) { cfg.MinProtection = 2 }
	bubble(t, two, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		c.pass(5*time.Second, nodes[:5]...)
		g, err := k.grant(1, nil)
		require.NoError(t, err)
		require.Equal(t, (&wire.Scheme{K: 1, M: 2}).String(), g.Placements[0].Scheme.String())
		require.EqualValues(t, 2, g.Placements[0].Protects)
		c.pass(5*time.Second, nodes[:2]...)
		_, err = k.grant(1, nil)
		require.ErrorIs(t, err, moraine.Unavailable)
		require.ErrorContains(t, err, "any 2 hosts")
	})
}

func TestDefaultSchemeFollowsRegisteredHosts(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		for i, want := range []*wire.Scheme{{K: 1}, {K: 1, M: 1}, {K: 1, M: 2}, {K: 1, M: 2}, {K: 1, M: 2}, {K: 4, M: 2}} {
			c.register(fmt.Sprintf("n%d", i+1), 1)
			g, err := k.grant(1, nil)
			require.NoError(t, err)
			require.Equal(t, want.String(), g.Placements[0].Scheme.String(), "%d hosts", i+1)
		}
	})
}

func TestAnAdministratorsWordStays(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.RepairGrace = 30 * time.Second }, func(c *cluster) {
		nodes := c.fleet(7)
		n := nodes[2]
		id := n.devices[0].Id
		set := func(state wire.DeviceState) {
			_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{
				SetDeviceState: &wire.SetDeviceState{Device: id, State: state, Reason: "by hand"}}})
			require.NoError(t, err)
			synctest.Wait() // the leader has read it
		}
		restart := n.again
		for _, want := range []wire.DeviceState{out, wire.DeviceState_DEVICE_STATE_DRAINING} {
			set(want)
			restart()
			require.Equal(t, want, c.device(id).State, "its host starts again")
			c.pass(40*time.Second, without(nodes, 2)...)
			c.pass(3*time.Second, nodes...)
			require.Equal(t, want, c.device(id).State, "its host was silent and is back")
			n.failed = true
			c.pass(3*time.Second, nodes...)
			require.Equal(t, out, c.device(id).State)
			n.failed = false
			restart()
			require.Equal(t, want, c.device(id).State, "it failed and works again")
			set(in)
			restart()
			require.Equal(t, in, c.device(id).State)
		}
		// Devices that are out automatically can also be set out by an administrator.
		c.pass(40*time.Second, without(nodes, 2)...)
		require.Equal(t, out, c.device(id).State)
		set(out)
		c.pass(3*time.Second, nodes...)
		require.Equal(t, out, c.device(id).State)
		set(in)
		require.Equal(t, in, c.device(id).State)
	})
}

func TestSilentHostGoesOutAndComesBack(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.RepairGrace = 30 * time.Second }, func(c *cluster) {
		nodes := c.fleet(7)
		id := nodes[2].devices[0].Id
		c.pass(25*time.Second, without(nodes, 2)...)
		require.Equal(t, in, c.device(id).State)
		c.pass(10*time.Second, without(nodes, 2)...)
		require.Equal(t, out, c.device(id).State)

		// A new leader waits for its heartbeat, and brings it in again.
		c.elect("m2")
		require.Equal(t, out, c.device(id).State)
		c.pass(3*time.Second, nodes...)
		require.Equal(t, in, c.device(id).State)
	})
}

// A disk that is missing when its host returns stays out: reports from before do not count.
func TestSilentHostComesBackWithoutADisk(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.RepairGrace = 30 * time.Second }, func(c *cluster) {
		nodes := append(c.fleet(6), c.register("n7", 2))
		c.pass(3*time.Second, nodes...)
		n := nodes[6]
		there, missing := n.devices[0], n.devices[1]
		c.pass(40*time.Second, without(nodes, 6)...)
		require.Equal(t, out, c.device(there.Id).State)
		require.Equal(t, out, c.device(missing.Id).State)
		n.devices = n.devices[:1]
		n.again()
		c.pass(5*time.Second, nodes...)
		require.Equal(t, in, c.device(there.Id).State)
		require.Equal(t, out, c.device(missing.Id).State)

		n.devices = append(n.devices, missing)
		n.again()
		c.pass(3*time.Second, nodes...)
		require.Equal(t, in, c.device(missing.Id).State)
	})
}

func TestNewLeaderDeclaresNobodyOutEarly(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.RepairGrace = 30 * time.Second }, func(c *cluster) {
		nodes := c.fleet(6)
		c.pass(25*time.Second, nodes[:5]...)
		c.elect("m2")
		c.pass(25*time.Second, nodes[:5]...)
		require.Equal(t, in, c.device(nodes[5].devices[0].Id).State)
		c.pass(10*time.Second, nodes[:5]...)
		require.Equal(t, out, c.device(nodes[5].devices[0].Id).State)
	})
}

func TestServerTakesItsDeviceOut(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		c.pass(2*time.Second, nodes...)
		nodes[0].failed = true
		c.pass(3*time.Second, nodes...)
		d := c.device(nodes[0].devices[0].Id)
		require.Equal(t, out, d.State)
		nodes[0].failed = false
		c.pass(3*time.Second, nodes...)
		require.Equal(t, out, c.device(d.Id).State, "what went out for an error comes back by registering")
		nodes[0].again()
		require.Equal(t, in, c.device(d.Id).State)
	})
}

// Reports of an earlier boot do not take a device out again if the first heartbeat of the next boot
// is late.
func TestFailureEndsWithTheBoot(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		nodes[0].failed = true
		c.pass(3*time.Second, nodes...)
		id := nodes[0].devices[0].Id
		require.Equal(t, out, c.device(id).State)
		nodes[0].failed = false
		nodes[0].again()
		c.pass(2*time.Second, nodes[1:]...)
		require.Equal(t, in, c.device(id).State)
		c.pass(2*time.Second, nodes...)
		require.Equal(t, in, c.device(id).State)
	})
}

// A device that its server reports broken is not brought in by registering.
func TestBrokenDeviceStaysOut(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		nodes[0].failed = true
		c.pass(3*time.Second, nodes...)
		id := nodes[0].devices[0].Id
		require.Equal(t, out, c.device(id).State)
		nodes[0].again()
		require.Equal(t, out, c.device(id).State)
		nodes[0].failed = false
		nodes[0].again()
		require.Equal(t, in, c.device(id).State)
	})
}

func TestUnknownBootMustRegister(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		n := c.register("n1", 1)
		require.False(t, n.beat().Register)
		n.devices[0].Epoch++
		require.True(t, n.beat().Register, "another boot")
		stranger := &node{c: c, id: "n9"}
		require.True(t, stranger.beat().Register, "never heard of")
	})
}

func TestCluster(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		c.fleet(3)
		resp, err := c.do(peer(transport.RoleClient, "c1"), &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		require.NoError(t, err)
		got := resp.GetCluster()
		require.Equal(t, clusterUUID[:], got.Cluster)
		require.Equal(t, uint64(1), got.Incarnation)
		require.Len(t, got.Topology.Hosts, 3)
		require.Len(t, got.Metadata, 3)
		require.Equal(t, "m1", got.Metadata[0].Id)
		require.True(t, got.Metadata[0].Leader)
		require.Equal(t, []string{"m2:7000"}, got.Metadata[1].Addresses)
		require.Equal(t, uint32(2), got.DefaultScheme.M)
		require.NoError(t, c.leader().Healthy())
	})
}
