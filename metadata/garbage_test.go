package metadata_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func deletions(nodes []*node) (all []*wire.Deletion) {
	for _, n := range nodes {
		all = append(all, n.beat().Deletions...)
	}
	return all
}

func TestDeletionsOnlyAfterTheGrace(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		s := k.write("f", nil)
		k.remove("f")
		for range 5 {
			require.Empty(t, deletions(nodes))
			c.pass(10*time.Second, nodes...)
		}
		c.elect("m2") // the grace is in cluster time: a new leader does not shorten it
		require.Empty(t, deletions(nodes))
		c.pass(15*time.Second, nodes...)
		got := deletions(nodes)
		require.Len(t, got, 6)
		for _, d := range got {
			require.Equal(t, s.Id, d.Stripe)
			require.Equal(t, s.Chunks[d.Index].Device, d.Device)
			require.Equal(t, s.Version+1, d.Below)
		}
		// Each host acknowledges its own deletions; no host may do it for another.
		_, err := nodes[0].ask(&wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{DeletedChunks: &wire.DeletedChunks{Deleted: got}}})
		require.ErrorIs(t, err, moraine.PermissionDenied)
		for i, n := range nodes {
			_, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{DeletedChunks: &wire.DeletedChunks{Deleted: got[i : i+1]}}})
			require.NoError(t, err)
		}
		require.Empty(t, deletions(nodes))
	})
}

// TestDeletionsAreSharedByDevices: if there are more deletions than one heartbeat takes, each
// device of a host gets its share, and the others get what one does not need. A device reported as
// out gets none, because it could not carry them out.
func TestDeletionsAreSharedByDevices(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		n := c.register("n1", 3)
		k := c.open(peer(transport.RoleClient, "c1"))
		dead := map[uint32]int{1: 12, 2: 12, 3: 2}
		for device, count := range dead {
			g, err := k.grant(uint32(count), nil)
			require.NoError(t, err)
			for i := range uint64(count) {
				name := fmt.Sprint("f", device, "-", i)
				k.commit(name, &wire.Placement{Stripe: g.First + i, Scheme: &wire.Scheme{K: 1}, Devices: []uint32{device}})
				k.remove(name)
			}
		}
		c.pass(70*time.Second, n)
		sent := func(most uint32, broken ...uint32) map[uint32]int {
			beat := &wire.Heartbeat{MaxDeletions: most}
			for _, d := range n.devices {
				w := &wire.Device{Id: d.Id, Epoch: d.Epoch, Capacity: d.Capacity, State: in}
				if slices.Contains(broken, d.Id) {
					w.State = out
				}
				beat.Devices = append(beat.Devices, w)
			}
			resp, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: beat}})
			require.NoError(t, err)
			count := map[uint32]int{}
			for _, d := range resp.GetHeartbeat().Deletions {
				count[d.Device]++
			}
			return count
		}
		require.Equal(t, map[uint32]int{1: 2, 2: 2, 3: 2}, sent(6))
		require.Equal(t, map[uint32]int{1: 5, 2: 5, 3: 2}, sent(12))
		require.Equal(t, map[uint32]int{1: 1}, sent(1))
		require.Empty(t, sent(0))
		require.Equal(t, dead, sent(100))
		require.Equal(t, map[uint32]int{2: 10, 3: 2}, sent(12, 1))
		require.Empty(t, sent(12, 1, 2, 3))
	})
}

func TestReports(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		p := &wire.Placement{Scheme: &wire.Scheme{K: 4, M: 2}, Devices: []uint32{1, 2, 3, 4, 5, 6}}
		g, err := k.grant(4, nil)
		require.NoError(t, err)
		var stripes []*wire.Stripe
		for i, name := range []string{"a", "b", "c"} {
			p.Stripe = g.First + uint64(i)
			stripes = append(stripes, k.commit(name, p))
		}
		n := nodes[0]
		report := func(started uint64, chunks ...*wire.ChunkReport) *wire.ReportChunksReply {
			resp, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{
				Device: n.devices[0].Id, Chunks: chunks, PassStarted: started}}})
			require.NoError(t, err)
			return resp.GetReportChunks()
		}
		held := func(stripe uint64, version, crc uint32) *wire.ChunkReport {
			return &wire.ChunkReport{Stripe: stripe, Version: version, Crc: crc, Length: 4096}
		}
		started := n.beat().Applied
		// Of a, b and c: a is intact, b has other bytes, c is missing. The fourth number is granted
		// and not committed; the far one was never granted.
		granted, far := stripes[2].Id+1, stripes[2].Id+1<<20
		got := report(started, held(stripes[0].Id, 1, 0), held(stripes[1].Id, 1, 99), held(granted, 1, 5), held(far, 1, 5))
		require.Equal(t, uint64(1), got.Missing)
		require.Equal(t, uint64(1), got.Unknown)
		require.Empty(t, got.Deletions)
		c.pass(2*time.Second, nodes...)
		repaired := map[uint64]bool{}
		for _, n := range nodes {
			for _, job := range n.lease(0) {
				for _, task := range job.Repairs {
					repaired[task.Stripe.Id] = true
					require.Equal(t, uint32(1), task.Missing)
				}
			}
		}
		require.Equal(t, map[uint64]bool{stripes[1].Id: true, stripes[2].Id: true}, repaired)

		// A chunk that came after the pass began may be missing from it.
		before := n.beat().Applied
		p.Stripe = granted
		k.commit("d", p)
		got = report(before, held(stripes[0].Id, 1, 0), held(stripes[1].Id, 1, 0), held(stripes[2].Id, 1, 0), held(far, 1, 5))
		require.Zero(t, got.Missing)

		// A report made under a state that this server has not reached is not judged.
		_, err = n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{
			Device: n.devices[0].Id, PassStarted: before + 1000}}})
		require.ErrorIs(t, err, moraine.Unavailable)
		_, err = n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{
			Device: nodes[1].devices[0].Id, PassStarted: before}}})
		require.ErrorIs(t, err, moraine.PermissionDenied)

		resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		require.NoError(t, err)
		require.Equal(t, uint64(4096), resp.GetCluster().LeakedBytes)
	})
}

// A slice of a report that is sent again after a lost reply neither ends its pass nor counts twice.
func TestARepeatedSliceOfAReport(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		n := nodes[0]
		k := c.open(peer(transport.RoleClient, "c1"))
		g, err := k.grant(1, nil)
		require.NoError(t, err)
		unknown := func(i uint64) uint64 { return g.First + i<<20 }
		report := func(started, from, to uint64, stripes ...uint64) {
			r := &wire.ReportChunks{Device: n.devices[0].Id, PassStarted: started, From: from, To: to}
			for _, s := range stripes {
				r.Chunks = append(r.Chunks, &wire.ChunkReport{Stripe: s, Version: 1, Length: 4096})
			}
			_, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: r}})
			require.NoError(t, err)
		}
		leaked := func() uint64 {
			resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
			require.NoError(t, err)
			return resp.GetCluster().LeakedBytes
		}
		started := n.beat().Applied
		for range 2 {
			report(started, 0, unknown(2), unknown(1))
		}
		for range 2 {
			report(started, unknown(2), unknown(3), unknown(2))
		}
		require.Zero(t, leaked(), "the pass goes on")
		listed := func(after *wire.ListQuarantine) *wire.QuarantineReply {
			resp, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_ListQuarantine{ListQuarantine: after}})
			require.NoError(t, err)
			return resp.GetQuarantine()
		}
		require.Empty(t, listed(&wire.ListQuarantine{}).Chunks)
		for range 2 {
			report(started, unknown(3), 0, unknown(3))
			require.Equal(t, uint64(3*4096), leaked())
			// Unexplained chunks are listed in pages.
			all := listed(&wire.ListQuarantine{})
			require.False(t, all.More)
			require.Len(t, all.Chunks, 3)
			require.EqualValues(t, 3*4096, all.TotalBytes)
			require.Zero(t, all.UnlistedBytes)
			for i, q := range all.Chunks {
				require.Equal(t, unknown(uint64(i+1)), q.Stripe)
				require.Equal(t, n.id, q.Host)
				require.EqualValues(t, 1, q.Incarnation)
			}
			page := listed(&wire.ListQuarantine{Limit: 2})
			require.True(t, page.More)
			last := page.Chunks[1]
			rest := listed(&wire.ListQuarantine{AfterDevice: last.Device, AfterStripe: last.Stripe, AfterIndex: last.Index})
			require.Len(t, rest.Chunks, 1)
			require.False(t, rest.More)
		}
		// A pass of one slice, twice; and one with a gap, which does not count.
		started = n.beat().Applied
		for range 2 {
			report(started, 0, 0, unknown(1))
			require.Equal(t, uint64(4096), leaked())
		}
		started = n.beat().Applied
		report(started, 0, unknown(2))
		report(started, unknown(3), 0)
		require.Equal(t, uint64(4096), leaked())
	})
}

func TestEndedGrantsAreDeletedAfterTheGrace(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		g, err := k.grant(8, nil)
		require.NoError(t, err)
		report := func() *wire.ReportChunksReply {
			n := nodes[0]
			started := n.beat().Applied
			resp, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{Device: n.devices[0].Id,
				PassStarted: started, Chunks: []*wire.ChunkReport{{Stripe: g.First, Version: 1, Length: 4096}}}}})
			require.NoError(t, err)
			return resp.GetReportChunks()
		}
		require.Empty(t, report().Deletions, "the grant is live")
		_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
		require.NoError(t, err)
		c.pass(30*time.Second, nodes...)
		require.Empty(t, report().Deletions, "it has not ended for long enough")
		c.pass(40*time.Second, nodes...)
		got := report()
		require.Len(t, got.Deletions, 1)
		require.Equal(t, g.First, got.Deletions[0].Stripe)
		require.Zero(t, got.Unknown)
	})
}

// TestKeptBytesGiveWayOnASharedDisk: if the metadata shares the devices' disk and that disk is
// nearly full, chunks kept for backups are deleted after the grace. Otherwise a full metadata disk
// does not affect them.
func TestKeptBytesGiveWayOnASharedDisk(t *testing.T) {
	for _, shares := range []bool{false, true} {
		change := func(cfg *metadata.Config) { cfg.BackupHorizon, cfg.SharesDisk = 24*time.Hour, shares }
		bubble(t, change, func(c *cluster) {
			nodes := c.fleet(6)
			k := c.open(peer(transport.RoleClient, "c1"))
			k.write("f", nil)
			k.remove("f")
			c.pass(2*time.Minute, nodes...)
			require.Empty(t, deletions(nodes), "the horizon is not over")
			c.group.Fail(metadatatest.Faults{LowSpace: true})
			if shares {
				require.Len(t, deletions(nodes), 6)
			} else {
				require.Empty(t, deletions(nodes))
			}
		})
	}
}
