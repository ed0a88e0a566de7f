package metadata_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A host that dies while draining is declared dead like any other after the grace, also with no
// host to spare, and continues to drain when it returns. One announced to be away is waited for.
func TestDrainedHostFallsSilent(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.RepairGrace = 30 * time.Second }, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		k.write("f", nil) // 4+2, on all six
		id := nodes[2].devices[0].Id
		set := func(to wire.DeviceState) error {
			_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{
				SetHostState: &wire.SetHostState{Host: "n3", State: to, Reason: "by hand"}}})
			synctest.Wait()
			return err
		}
		wants := func(to wire.DeviceState, reason string) {
			t.Helper()
			d := c.device(id)
			require.Equal(t, to, d.State)
			require.Equal(t, reason, d.Reason)
		}
		require.NoError(t, set(draining))
		c.pass(5*time.Second, nodes...)
		require.EqualValues(t, 1, c.cluster().Waits.GetDrain())
		others := without(nodes, 2)
		c.pass(25*time.Second, others...)
		wants(draining, "by hand")
		c.pass(10*time.Second, others...)
		wants(out, "its host is silent")
		require.ErrorIs(t, set(wire.DeviceState_DEVICE_STATE_RETIRED), moraine.Conflict)
		jobs := nodes[0].lease(0)
		require.Len(t, jobs, 1)
		require.Equal(t, "lost device", jobs[0].Repairs[0].Reason)
		require.NotEqual(t, id, jobs[0].Repairs[0].Intents[0].Device)

		c.pass(3*time.Second, nodes...)
		wants(draining, "by hand")
		require.NoError(t, set(in))
		require.NoError(t, c.away("n3", time.Minute, true))
		require.NoError(t, set(draining))
		c.pass(50*time.Second, others...)
		wants(draining, "by hand")
		c.pass(20*time.Second, others...)
		wants(out, "its host is silent")

		// It no longer drains, and is still dead.
		require.NoError(t, set(in))
		c.pass(3*time.Second, others...)
		wants(out, "its host is silent")
		c.pass(3*time.Second, nodes...)
		wants(in, "its host is back")

		// It is already dead when the drain begins.
		c.pass(40*time.Second, others...)
		require.NoError(t, set(draining))
		wants(out, "its host is silent")
		c.elect("m2")
		c.pass(3*time.Second, nodes...)
		wants(draining, "by hand")
	})
}
