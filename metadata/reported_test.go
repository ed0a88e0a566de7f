package metadata_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// used returns how full each host's device is, according to the cluster status.
func used(c *wire.ClusterReply) map[string]uint64 {
	out := make(map[string]uint64)
	for _, h := range c.Topology.Hosts {
		out[h.Id] = h.Devices[0].Used
	}
	return out
}

// A newly elected leader is asked how full the cluster is. It answers when its hosts have reported,
// and assumes that a host without a report is as full as the others.
func TestHowFullItIsOutlivesTheLeader(t *testing.T) {
	const full, half = 1 << 40, 1 << 39
	for _, row := range []struct {
		name        string
		used, dead  uint64 // of each host; number of hosts that do not answer
		told, guess uint64 // expected answer
	}{
		{name: "full", used: full, told: full},
		{name: "half full, and a host down", used: half, dead: 1, told: half, guess: half},
		{name: "nobody answers", used: full, dead: 6},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				nodes := c.fleet(6)
				for _, n := range nodes {
					n.devices[0].Used = row.used
				}
				c.pass(2*time.Second, nodes...)
				require.Equal(t, row.used, used(c.cluster())["n1"])
				c.elect("m2")
				answer := make(chan *wire.ClusterReply)
				go func() { answer <- c.cluster() }()
				synctest.Wait()
				live := nodes[:6-row.dead]
				c.pass(time.Second, live...)
				var got *wire.ClusterReply
				for got == nil {
					select {
					case got = <-answer:
					default:
						c.pass(time.Second, live...)
					}
				}
				for i, n := range nodes {
					want := row.told
					if i >= len(live) {
						want = row.guess
					}
					require.Equal(t, want, used(got)[n.id], n.id)
				}
				if len(live) == 0 {
					for _, h := range got.Topology.Hosts {
						require.False(t, h.Alive, "it is known that nobody answers")
					}
				}
			})
		})
	}
}

// Writes continue right after an election, before any host has reported how full it is. A device
// without a report does not refuse what it may have room for.
func TestPlacementBeforeHostsAreSeen(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		for _, n := range nodes[:5] {
			n.devices[0].Used = n.devices[0].Capacity
		}
		c.pass(2*time.Second, nodes...)
		c.elect("m2")
		g, err := k.grant(1, nil)
		require.NoError(t, err)
		require.Equal(t, uint32(4), g.Placements[0].Scheme.K)
		c.pass(2*time.Second, nodes[:5]...)
		g, err = k.grant(1, &wire.Scheme{K: 1})
		require.NoError(t, err)
		require.Equal(t, []uint32{nodes[5].devices[0].Id}, g.Placements[0].Devices, "the only one that is not known to be full")
	})
}
