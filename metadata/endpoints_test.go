package metadata_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func reaches(string) string { return "" }

// probing is a fleet whose hosts probe each other and reach everybody.
func (c *cluster) probing(n int) []*node {
	c.t.Helper()
	nodes := c.fleet(n)
	for _, n := range nodes {
		n.finds = reaches
	}
	c.pass(4*time.Second, nodes...)
	return nodes
}

// endpoint returns the endpoint health of a server.
func (c *cluster) endpoint(id string) *wire.EndpointHealth {
	c.t.Helper()
	reply := c.cluster()
	for _, m := range reply.Metadata {
		if m.Id == id {
			return m.Endpoint
		}
	}
	for _, h := range reply.Topology.Hosts {
		if h.Id == id {
			return h.Endpoint
		}
	}
	c.t.Fatalf("no server %s", id)
	return nil
}

// probersOf are the nodes that probe a server.
func probersOf(nodes []*node, id string) (out []*node) {
	for _, n := range nodes {
		if slices.ContainsFunc(n.probes, func(p *wire.ProbeTarget) bool { return p.Node == id }) {
			out = append(out, n)
		}
	}
	return out
}

// cannot makes a node fail to reach some servers.
func (h *node) cannot(ids ...string) {
	h.finds = func(target string) string {
		if slices.Contains(ids, target) {
			return "refused"
		}
		return ""
	}
}

// Three hosts probe each server, and each host probes few. Until they have reported, the endpoint
// health is unknown, also to a new leader and after a server's start.
func TestEndpointsAreUnknownUntilTried(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(8)
		c.pass(3*time.Second, nodes...)
		require.False(t, c.endpoint("n1").GetKnown())
		require.False(t, c.endpoint("m2").Known)
		for _, n := range nodes {
			n.finds = reaches
		}
		c.pass(2*time.Second, nodes...)
		total := 0
		for _, id := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "m1", "m2", "m3"} {
			e := c.endpoint(id)
			require.True(t, e.Known, id)
			require.EqualValues(t, 3, e.Tried, id)
			require.Zero(t, e.Failed)
			by := probersOf(nodes, id)
			require.Len(t, by, 3)
			total += len(by)
			require.False(t, slices.ContainsFunc(by, func(n *node) bool { return n.id == id }), "nobody tries itself")
		}
		require.Equal(t, 33, total)

		nodes[3].again() // the host starts
		require.False(t, c.endpoint("n4").Known)
		require.True(t, c.endpoint("n5").Known)
		c.pass(2*time.Second, nodes...)
		require.True(t, c.endpoint("n4").Known)

		c.elect("m2")
		require.False(t, c.endpoint("n1").GetKnown())
		for _, n := range nodes {
			n.probes = nil
		}
		c.pass(6*time.Second, nodes...)
		require.True(t, c.endpoint("n1").Known)

		for _, n := range probersOf(nodes, "n1") {
			n.finds = nil // it no longer reports
		}
		c.pass(40*time.Second, nodes...)
		require.False(t, c.endpoint("n1").Known, "what was said long ago counts no more")
	})
}

// If two peers cannot connect to a host, it is unreachable although it sends heartbeats, and
// placement avoids it until it is reached again. One peer is not enough.
func TestAHostThatPeersCannotReachGetsNothingNew(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.probing(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		var device uint32
		for _, h := range c.topology().Hosts {
			if h.Id == "n2" {
				device = h.Devices[0].Id
			}
		}
		placed := func() bool {
			g, err := k.grant(16, &wire.Scheme{K: 1, M: 1})
			require.NoError(t, err)
			return slices.ContainsFunc(g.Placements, func(p *wire.Placement) bool { return slices.Contains(p.Devices, device) })
		}
		require.True(t, placed())
		by := probersOf(nodes, "n2")
		by[0].cannot("n2")
		c.pass(3*time.Second, nodes...)
		e := c.endpoint("n2")
		require.False(t, e.Unreachable)
		require.EqualValues(t, 1, e.Failed, "it is said all the same")
		require.Contains(t, e.Error, "refused")
		require.True(t, placed())

		by[1].cannot("n2")
		c.pass(3*time.Second, nodes...)
		require.True(t, c.endpoint("n2").Unreachable)
		require.False(t, placed())
		for _, h := range c.topology().Hosts {
			require.True(t, h.Alive, "it is not down")
		}

		by[0].finds = reaches
		c.pass(3*time.Second, nodes...)
		require.False(t, c.endpoint("n2").Unreachable)
		require.True(t, placed())
	})
}

// The leader ignores probers that reach nobody, and reports them. If most hosts appear unreachable,
// placement ignores that.
func TestBadProbersCondemnNobody(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.probing(6)
		for _, n := range nodes[:2] {
			n.finds = func(string) string { return "no route" }
		}
		c.pass(3*time.Second, nodes...)
		for _, id := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "m1", "m2", "m3"} {
			require.Zero(t, c.endpoint(id).Failed, id)
			require.False(t, c.endpoint(id).Unreachable, id)
		}
		require.True(t, c.endpoint("n1").Deaf)
		require.False(t, c.endpoint("n3").Deaf)

		for _, n := range nodes { // all reach only the metadata servers
			n.cannot("n1", "n2", "n3", "n4", "n5", "n6")
		}
		c.pass(3*time.Second, nodes...)
		require.True(t, c.endpoint("n1").Unreachable)
		_, err := c.open(peer(transport.RoleClient, "c1")).grant(4, &wire.Scheme{K: 1, M: 1})
		require.NoError(t, err)
	})
}

// In a cluster of two hosts the report of the other one is enough, and an only host probes itself.
func TestProbersOfSmallClusters(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		n1 := c.register("n1", 1)
		n1.finds = reaches
		c.pass(4*time.Second, n1)
		require.Contains(t, names(n1.probes), "n1")
		require.True(t, c.endpoint("n1").Known)
		n2 := c.register("n2", 1)
		n2.finds = reaches
		c.pass(4*time.Second, n1, n2)
		require.NotContains(t, names(n1.probes), "n1")
		n2.cannot("n1")
		c.pass(3*time.Second, n1, n2)
		require.True(t, c.endpoint("n1").Unreachable)
		require.False(t, c.endpoint("n2").Unreachable)
	})
}

func names(targets []*wire.ProbeTarget) (out []string) {
	for _, p := range targets {
		out = append(out, p.Node)
	}
	return out
}

// The leader ignores a host's reports about servers that it was not told to probe, under another
// mark, or about too many.
func TestProbesThatNobodyAskedForAreIgnored(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.probing(12)
		by := probersOf(nodes, "n2")
		for _, n := range nodes {
			if slices.Contains(by, n) {
				n.says = func(hb *wire.Heartbeat) {
					hb.Probes = append(hb.Probes, &wire.Probe{Role: "chunkserver", Node: "n2", Mark: 1, Error: "lie"})
				}
				continue
			}
			n.says = func(hb *wire.Heartbeat) {
				hb.Probes = nil
				for i := range 1000 {
					hb.Probes = append(hb.Probes, &wire.Probe{Role: "chunkserver", Node: "n2", Mark: by[0].probes[0].Mark, Error: strings.Repeat("x", 100)},
						&wire.Probe{Role: "chunkserver", Node: fmt.Sprintf("none%d", i), Error: "x"})
				}
			}
		}
		c.pass(3*time.Second, nodes...)
		require.Zero(t, c.endpoint("n2").Failed)
	})
}

// A bucket that does not answer a host is reported with that host's error and the start time. Until
// hosts have checked it, its status is unknown. A few hosts are chosen to check an idle bucket
// often.
func TestBucketHealthIsKnown(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		var nodes []*node
		for i := range 5 {
			n := &node{c: c, id: fmt.Sprintf("n%d", i+1), bucket: "s3://b"}
			if i == 4 {
				n.bucket = ""
			}
			n.devices = []*wire.Device{{Uuid: []byte(fmt.Sprintf("bucket device %02d", i)), Capacity: 1 << 40}}
			n.again()
			nodes = append(nodes, n)
		}
		bucket := func() *wire.BucketStatus {
			list := c.cluster().Buckets
			require.Len(t, list, 1)
			require.Equal(t, "s3://b", list[0].Bucket)
			require.EqualValues(t, 4, list[0].Hosts)
			return list[0]
		}
		c.pass(2*time.Second, nodes...)
		require.Zero(t, bucket().Answered+bucket().Failed)
		watching := 0
		for _, n := range nodes {
			if n.beat().WatchBucket {
				watching++
			}
			n.says = func(hb *wire.Heartbeat) { hb.Bucket = &wire.BucketHealth{Tried: true, SinceMillis: 500} }
		}
		require.Equal(t, 3, watching)
		c.pass(2*time.Second, nodes...)
		require.EqualValues(t, 4, bucket().Answered)
		nodes[1].says = func(hb *wire.Heartbeat) {
			hb.Bucket = &wire.BucketHealth{Tried: true, SinceMillis: 7000, Error: "timed out"}
		}
		c.pass(2*time.Second, nodes...)
		b := bucket()
		require.EqualValues(t, 3, b.Answered)
		require.EqualValues(t, 1, b.Failed)
		require.Equal(t, "n2", b.Host)
		require.GreaterOrEqual(t, b.FailingMillis, uint64(7000))
		resp, err := c.do(peer(transport.RoleClient, "c1"), &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
		require.NoError(t, err)
		require.EqualValues(t, 1, resp.GetTier().Health[0].Failed)

		for _, n := range nodes[:4] {
			n.says = func(hb *wire.Heartbeat) { hb.Bucket = &wire.BucketHealth{Tried: true, SinceMillis: 40_000} }
		}
		c.pass(2*time.Second, nodes...)
		require.Zero(t, bucket().Answered, "no host has had an answer of late")
		c.elect("m3")
		for _, b := range c.cluster().Buckets {
			require.Zero(t, b.Answered+b.Failed, "nobody has told this leader")
		}
	})
}

// A host's reports about other hosts' devices, or unknown ones, change nothing and are not kept.
func TestAHeartbeatSpeaksOfItsOwnDevicesAlone(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		c.pass(2*time.Second, nodes...)
		other := nodes[1].devices[0]
		nodes[0].says = func(hb *wire.Heartbeat) {
			hb.Devices = append(hb.Devices, &wire.Device{Id: other.Id, Epoch: other.Epoch, State: out, Capacity: 1, Used: 1 << 60},
				&wire.Device{Id: 777, State: out, Capacity: 1 << 60})
		}
		c.pass(3*time.Second, nodes...)
		d := c.device(other.Id)
		require.Equal(t, in, d.State)
		require.EqualValues(t, 1<<40, d.Capacity)
		require.Zero(t, d.Used)
	})
}
