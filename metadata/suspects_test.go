package metadata_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// suspected returns what hosts must verify, as the answers to their next heartbeats say.
func (c *cluster) suspected(nodes ...*node) (all []*wire.SuspectChunk) {
	for _, n := range nodes {
		all = append(all, n.beat().Verify...)
	}
	return all
}

// reportOf reports all chunks of a stripe as bad.
func reportOf(s *wire.Stripe, kind moraine.Kind) *wire.MetaRequest {
	op := &wire.ReportBadChunks{}
	for i, ch := range s.Chunks {
		op.Chunks = append(op.Chunks, &wire.BadChunk{Stripe: s.Id, Index: uint32(i), Device: ch.Device, Version: s.Version, AtVersion: true, Kind: uint32(kind)})
	}
	return &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: op}}
}

// TestReportsOfClientsAreVerified: a report of a client, also of the root or a read-only one, or of a
// gateway, changes no state and queues no repair. Each host with a reported chunk verifies it, once
// in a while. The report of the chunkserver itself, or of fsck, queues the repair.
func TestReportsOfClientsAreVerified(t *testing.T) {
	for _, role := range []transport.Role{transport.RoleClient, transport.RoleGateway} {
		for _, kind := range []moraine.Kind{moraine.NotFound, moraine.Corrupt, moraine.Stale, moraine.Lost} {
			bubble(t, nil, func(c *cluster) {
				nodes := c.fleet(7)
				k := c.open(peer(transport.RoleClient, "writer"))
				s := k.write("f", nil)
				reader := peer(role, "liar")
				reader.ReadOnly = true
				liar := c.open(reader)
				report := func() {
					_, err := liar.ask(reportOf(s, kind))
					require.NoError(t, err)
				}
				report()
				got := c.suspected(nodes...)
				require.Len(t, got, len(s.Chunks), "each of its hosts verifies it")
				for _, w := range got {
					require.Equal(t, s.Id, w.Stripe)
				}
				c.pass(3*time.Second, nodes...)
				require.Zero(t, c.cluster().RepairQueued)
				require.Zero(t, c.cluster().LostStripes)
				require.Empty(t, nodes[0].lease(0))
				report()
				require.Empty(t, c.suspected(nodes...), "it was verified a moment ago")
				c.pass(30*time.Second, nodes...)
				require.NoError(t, errors.Join(k.renew(), liar.renew()))
				report()
				require.Len(t, c.suspected(nodes...), len(s.Chunks))
				require.Equal(t, s.Version, k.stripeOf("f").Version)

				// An outdated report, one of a place where it is not, and one of a host that did not answer.
				for what, change := range map[string]func(*wire.BadChunk){
					"version": func(b *wire.BadChunk) { b.Version++ },
					"device":  func(b *wire.BadChunk) { b.Device = s.Chunks[1].Device },
					"index":   func(b *wire.BadChunk) { b.Index = 99 },
					"stripe":  func(b *wire.BadChunk) { b.Stripe += 1000 },
					"kind":    func(b *wire.BadChunk) { b.Kind = uint32(moraine.Unavailable) },
				} {
					c.pass(30*time.Second, nodes...)
					require.NoError(t, errors.Join(k.renew(), liar.renew()))
					req := reportOf(s, kind)
					op := req.GetReportBadChunks()
					op.Chunks = op.Chunks[:1]
					change(op.Chunks[0])
					_, err := liar.ask(req)
					require.NoError(t, err)
					require.Empty(t, c.suspected(nodes...), what)
				}

				owner := &wire.MetaRequest{Op: reportOf(s, moraine.Corrupt).Op}
				owner.GetReportBadChunks().Chunks = owner.GetReportBadChunks().Chunks[:1]
				_, err := c.do(peer(transport.RoleChunkserver, c.device(s.Chunks[0].Device).Host), owner)
				require.NoError(t, err)
				require.NotZero(t, c.cluster().RepairQueued+c.cluster().RepairRunning)
			})
		}
	}
}

// TestReportsOfOneCertificateAreLimited: of a certificate that reports many chunks, only so many are
// verified; the leader counts and logs the others. Reports of another certificate are not affected.
func TestReportsOfOneCertificateAreLimited(t *testing.T) {
	const most, perSecond = 256, 4
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		k := c.open(peer(transport.RoleClient, "writer"))
		g, err := k.grant(150, &wire.Scheme{K: 1, M: 1})
		require.NoError(t, err)
		var all []*wire.Stripe
		for i, p := range g.Placements {
			all = append(all, k.commit(fmt.Sprintf("f%d", i), p))
		}
		liar := c.open(peer(transport.RoleClient, "liar"))
		for _, s := range all {
			_, err := liar.ask(reportOf(s, moraine.Corrupt))
			require.NoError(t, err)
		}
		given := 0
		for range 10 { // a heartbeat carries some
			given += len(c.suspected(nodes...))
		}
		require.LessOrEqual(t, given, most)
		require.Greater(t, given, most/2)

		honest := c.open(peer(transport.RoleClient, "honest"))
		_, err = honest.ask(reportOf(all[len(all)-1], moraine.Corrupt))
		require.NoError(t, err)
		require.Len(t, c.suspected(nodes...), 2)

		c.pass(5*time.Second, nodes...)
		for _, s := range all {
			_, err := liar.ask(reportOf(s, moraine.Corrupt))
			require.NoError(t, err)
		}
		given = 0
		for range 10 {
			given += len(c.suspected(nodes...))
		}
		require.LessOrEqual(t, given, 6*perSecond)

		op := &wire.ReportBadChunks{Chunks: make([]*wire.BadChunk, 257)}
		for i := range op.Chunks {
			op.Chunks[i] = &wire.BadChunk{}
		}
		_, err = liar.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: op}})
		require.ErrorIs(t, err, moraine.TooLarge)
	})
}
