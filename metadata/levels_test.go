package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestLossFarInAFileIsFound: the first bytes of a file, more than one command inspects, stay in a
// host's memory. A loss behind them is reported, also by the next leader.
func TestLossFarInAFileIsFound(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		k := c.open(peer(transport.RoleClient, "c1"))
		resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: root, Name: "f", Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}})
		require.NoError(t, err)
		inode := resp.GetEntry().Attr.Inode
		g, err := k.grant(4, nil)
		require.NoError(t, err)
		const each = 250
		for i := range uint64(4) {
			s := &wire.Stripe{Id: g.First + i, Scheme: &wire.Scheme{K: 1}, Version: 1, Length: 512}
			d := nodes[min(i/2, 1)].devices[0]
			s.Chunks = []*wire.ChunkState{{Device: d.Id, Level: uint32(moraine.Memory), Epoch: d.Epoch}}
			op := &wire.Commit{Inode: inode, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: uint32(moraine.Memory), Stripes: []*wire.Stripe{s}}
			for n := range uint64(each) {
				op.Extents = append(op.Extents, &wire.Extent{Offset: n, Length: 1, Stripe: s.Id, StripeOffset: 2 * n})
			}
			_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
			require.NoError(t, err)
		}
		lost := func() []*wire.LostFile {
			c.pass(15*time.Second, nodes...)
			resp, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{}}})
			require.NoError(t, err)
			return resp.GetLost().Files
		}
		require.Empty(t, lost())
		nodes[1].again() // the memory of its earlier boot is gone
		d := nodes[1].devices[0]
		_, err = nodes[1].ask(&wire.MetaRequest{Op: &wire.MetaRequest_SettleChunks{SettleChunks: &wire.SettleChunks{
			Device: d.Id, Epoch: d.Epoch, Chunks: []*wire.SettledChunk{{Stripe: g.First + 2, Gone: true}, {Stripe: g.First + 3, Version: 1}}}}})
		require.NoError(t, err)
		for range 2 {
			files := lost()
			require.Len(t, files, 1)
			require.Len(t, files[0].Ranges, 1)
			require.EqualValues(t, 2*each, files[0].Ranges[0].Offset)
			require.EqualValues(t, each, files[0].Ranges[0].Length)
			c.elect("m2")
		}
	})
}
