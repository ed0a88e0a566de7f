package metadata_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// moveOf waits for a job of a kind that moves the stripe's chunk, and leases it. The nodes send
// heartbeats meanwhile.
func (c *cluster) moveOf(kind wire.JobKind, by *node, nodes ...*node) (*wire.Job, *wire.Intent) {
	c.t.Helper()
	for range 60 {
		resp, err := by.ask(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
			Kinds: []wire.JobKind{kind}, Max: 1}}})
		require.NoError(c.t, err)
		for _, job := range resp.GetJobs().Jobs {
			require.Len(c.t, job.Repairs, 1)
			require.Len(c.t, job.Repairs[0].Intents, 1)
			return job, job.Repairs[0].Intents[0]
		}
		c.pass(time.Second, nodes...)
	}
	c.t.Fatal("nothing is moved")
	return nil, nil
}

// TestMoveIsNotPublishedToTheDead: between the write of a moved chunk and its commit, hosts become
// silent or are announced to be away. A readable copy must not die for an unreadable one. If all
// hosts are up, the move is published.
func TestMoveIsNotPublishedToTheDead(t *testing.T) {
	const balance, repair = wire.JobKind_JOB_KIND_REBALANCE, wire.JobKind_JOB_KIND_REPAIR
	for name, tt := range map[string]struct {
		kind     wire.JobKind
		dead     string // "target", "other", or neither
		away     string
		unheard  bool // commit to a new leader
		moves    bool
		otherToo bool
	}{
		"evenness: all is well":        {kind: balance, moves: true},
		"evenness: the target is dead": {kind: balance, dead: "target"},
		"evenness: the other is dead":  {kind: balance, dead: "other"},
		"evenness: both are dead":      {kind: balance, dead: "target", otherToo: true},
		"evenness: the target is away": {kind: balance, away: "target"},
		"evenness: the other is away":  {kind: balance, away: "other"},
		"evenness: nobody was heard":   {kind: balance, unheard: true},
		"drain: all is well":           {kind: repair, moves: true},
		"drain: the target is dead":    {kind: repair, dead: "target"},
		"drain: both are dead":         {kind: repair, dead: "target", otherToo: true},
		"drain: the other is dead":     {kind: repair, dead: "other", moves: true},
		"drain: the target is away":    {kind: repair, away: "target"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				nodes := c.fleet(4)
				k := c.open(peer(transport.RoleClient, "c1"))
				g, err := k.grant(1, &wire.Scheme{K: 1, M: 1})
				require.NoError(t, err)
				from, other := nodes[0], nodes[1]
				p := g.Placements[0]
				p.Devices = []uint32{from.devices[0].Id, other.devices[0].Id}
				s := k.commit("f", p)
				if tt.kind == balance {
					from.devices[0].Used = 1 << 39 // the others are empty
				} else {
					_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{
						SetDeviceState: &wire.SetDeviceState{Device: from.devices[0].Id, State: draining}}})
					require.NoError(t, err)
				}
				job, move := c.moveOf(tt.kind, from, nodes...)
				require.Equal(t, s.Id, move.Stripe)
				require.Zero(t, move.Index)
				target := nodes[slices.IndexFunc(nodes, func(n *node) bool { return n.devices[0].Id == move.Device })]
				called := map[string]*node{"target": target, "other": other}

				live := nodes
				if tt.dead != "" {
					live = slices.DeleteFunc(slices.Clone(live), func(n *node) bool {
						return n == called[tt.dead] || tt.otherToo && n == other
					})
				}
				if tt.away != "" {
					require.NoError(t, c.away(called[tt.away].id, time.Hour, true))
				}
				c.pass(5*time.Second, live...)
				if tt.unheard {
					c.elect("m2")
				}
				resp, err := from.ask(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
					Job: job.Id, LeaseEpoch: job.LeaseEpoch, Intents: []*wire.Intent{move}}}})
				require.NoError(t, err)
				now := moraine.DeviceID(k.stripeOf("f").Chunks[0].Device)
				if tt.moves {
					require.Empty(t, resp.GetCommitRepair().Stale)
					require.EqualValues(t, move.Device, now)
					return
				}
				require.Equal(t, []uint64{s.Id}, resp.GetCommitRepair().Stale)
				require.EqualValues(t, from.devices[0].Id, now)
				_, err = from.ask(finish(job))
				require.NoError(t, err)
				c.pass(2*time.Second, live...)
				require.EqualValues(t, from.devices[0].Id, k.stripeOf("f").Chunks[0].Device)
			})
		})
	}
}
