package metadata_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// In a backlog longer than one assignment, stripes that get worse while they wait come next, before
// all earlier ones with more to spare.
func TestLeastRedundantAreRepairedFirst(t *testing.T) {
	few := func(cfg *metadata.Config) { cfg.MaxRepairs, cfg.RepairsPerSecond = 1, 32 }
	bubble(t, few, func(c *cluster) {
		nodes := c.fleet(8)
		k := c.open(peer(transport.RoleClient, "c1"))
		var all []*wire.Stripe
		for i := range 200 {
			all = append(all, k.write(fmt.Sprintf("f%d", i), nil)) // 4+2
		}
		c.pass(2*time.Second, nodes...)
		bad := func(s *wire.Stripe, index int) {
			_, err := k.c.verified(badChunk(s, index))
			require.NoError(t, err)
		}
		for _, s := range all {
			bad(s, 1)
		}
		c.pass(3*time.Second, nodes...)
		handed := int(c.cluster().RepairRunning)
		require.Positive(t, handed)
		require.Less(t, handed, 100)
		var worse []uint64
		for _, s := range all[180:] {
			bad(s, 2)
			worse = append(worse, s.Id)
		}
		c.pass(time.Second, nodes...)
		require.Equal(t, []uint64{20, 180}, c.cluster().StripesBySpare[:2])

		var order []uint64
		for len(order) < len(all) {
			jobs := nodes[0].lease(5 * time.Second)
			require.Len(t, jobs, 1, "%d of %d are repaired", len(order), len(all))
			for _, task := range jobs[0].Repairs {
				order = append(order, task.Stripe.Id)
				_, err := nodes[0].ask(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
					Job: jobs[0].Id, LeaseEpoch: jobs[0].LeaseEpoch, Intents: task.Intents}}})
				require.NoError(t, err)
			}
			_, err := nodes[0].ask(finish(jobs[0]))
			require.NoError(t, err)
			c.pass(time.Second, nodes...)
		}
		require.ElementsMatch(t, worse, order[handed:handed+len(worse)])
		require.Zero(t, c.cluster().RepairQueued)
	})
}
