package metadata_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// The status shows what the repair queue consists of, and why it does not advance.
func TestRepairWaitsAreReported(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		var s *wire.Stripe
		for i := range 3 {
			s = k.write(fmt.Sprintf("f%d", i), nil) // 4+2, on all six
		}
		c.pass(2*time.Second, nodes...)
		require.Nil(t, c.cluster().Waits)
		set := func(host string, to wire.DeviceState) {
			_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{
				SetHostState: &wire.SetHostState{Host: host, State: to}}})
			require.NoError(t, err)
			synctest.Wait()
		}
		waits := func() string {
			c.pass(2*time.Second, nodes...)
			return c.cluster().Waits.String()
		}
		require.Equal(t, (*wire.RepairWaits)(nil).String(), waits())
		set("n1", wire.DeviceState_DEVICE_STATE_DRAINING)
		require.Equal(t, (&wire.RepairWaits{Counted: 3, Drain: 3, NoHost: 3}).String(), waits())

		// A seventh, full host is a possible target without room.
		set("n1", wire.DeviceState_DEVICE_STATE_IN)
		full := c.register("n7", 1)
		full.devices[0].Used = full.devices[0].Capacity
		nodes = append(nodes, full)
		c.pass(2*time.Second, nodes...)
		set("n1", wire.DeviceState_DEVICE_STATE_DRAINING)
		require.Equal(t, (&wire.RepairWaits{Counted: 3, Drain: 3, NoRoom: 3}).String(), waits())

		// The same holds for a full host that has a bad chunk.
		set("n1", wire.DeviceState_DEVICE_STATE_IN)
		set("n7", wire.DeviceState_DEVICE_STATE_RETIRED)
		for _, n := range nodes {
			n.devices[0].Used = n.devices[0].Capacity
		}
		c.pass(2*time.Second, nodes[:6]...)
		_, err := k.c.verified(badChunk(s, 2))
		require.NoError(t, err)
		require.Equal(t, (&wire.RepairWaits{Counted: 1, Corrupt: 1, NoRoom: 1}).String(), waits())

		// If all are draining, a write reports it.
		for _, n := range nodes[:6] {
			set(n.id, wire.DeviceState_DEVICE_STATE_DRAINING)
		}
		_, err = k.grant(1, nil)
		require.ErrorContains(t, err, "although 6 answer: they are draining, out of service or in maintenance")
	})
}

// If the queue cannot be read, because one of its stripes has no record, the rest of the status
// still works: mounts use the same request to find out how full the cluster is.
func TestBrokenRepairQueueDoesNotHideTheCluster(t *testing.T) {
	bubbleSeen(t, func(c *cluster, seen *seenReads) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		s := k.write("f", nil)
		_, err := k.c.verified(badChunk(s, 2))
		require.NoError(t, err)
		c.pass(2*time.Second, nodes...)
		require.EqualValues(t, 1, c.cluster().Waits.GetCorrupt())
		broken := stripeKey(s.Id)
		seen.set(func(key []byte) bool { return string(key) == broken })
		c.pass(2*time.Second, nodes...)
		for range 2 {
			now := c.cluster()
			require.Nil(t, now.Waits)
			require.EqualValues(t, 1, now.RepairQueued)
			require.Len(t, now.Topology.Hosts, 6)
		}
		seen.set(nil)
		c.pass(2*time.Minute, nodes...)
		require.EqualValues(t, 1, c.cluster().Waits.GetCorrupt())
	})
}
