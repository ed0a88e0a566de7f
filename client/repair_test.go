package client_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/wire"
)

// stripesOf returns the records of a file's stripes.
func stripesOf(t *testing.T, c *cluster, cl *client.Client, path string) []*wire.Stripe {
	t.Helper()
	a, err := cl.Stat(c.ctx, path)
	require.NoError(t, err)
	resp, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{
		Inode: uint64(a.Inode()), Limit: 1000}}})
	require.NoError(t, err)
	return resp.GetExtents().Stripes
}

// Every chunk of every stripe is rebuilt correctly, with its own copy present, lost or wrong,
// and with another wrong chunk.
func TestRebuildChunk(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/f", bytesOf(1, 4*64<<10+100_000+900), 1<<30, false)
		for _, s := range stripesOf(t, c, cl, "/f") {
			for i, ch := range s.Chunks {
				id := moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: uint8(i)}
				other := moraine.ChunkID{Stripe: id.Stripe, Index: uint8((i + 1) % len(s.Chunks))}
				h, oh := c.hostOf(ch.Device), c.hostOf(s.Chunks[other.Index].Device)
				want := h.Chunk(id)
				for name, damage := range map[string]func(){
					"there": func() {},
					"lost":  func() { h.SetChunk(id, nil) },
					"wrong": func() { h.SetChunk(id, &memcluster.Chunk{Version: 1, CRC: want.CRC, Data: bytesOf(5, len(want.Data))}) },
					"other too": func() {
						h.SetChunk(id, nil)
						oh.SetChunk(other, &memcluster.Chunk{Version: 1, CRC: 1, Data: bytesOf(6, len(want.Data))})
					},
				} {
					keep := oh.Chunk(other)
					damage()
					data, sum, release, err := rawclient.Of(cl).RebuildChunk(c.ctx, s, i, 0)
					require.NoError(t, err, "%s %s", id, name)
					require.Equal(t, want.Data, data, name)
					require.Equal(t, ch.Crc, sum)
					release()
					h.SetChunk(id, want)
					oh.SetChunk(other, keep)
				}
			}
		}
	})
}

// RebuildChunk returns only bytes that the record promises, whatever the chunks contain.
func TestRebuildChunkHoldsTheRecord(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/f", bytesOf(1, 4*64<<10), 1<<30, false)
		s := stripesOf(t, c, cl, "/f")[0]
		s.Chunks[2].Crc++
		_, _, _, err := rawclient.Of(cl).RebuildChunk(c.ctx, s, 2, 0)
		require.ErrorIs(t, err, moraine.Corrupt)
		s.Chunks[2].Crc--
		for _, h := range c.Hosts[:3] {
			damages["lost"](h)
		}
		for i, ch := range s.Chunks {
			if c.hostOf(ch.Device).Count() == 0 {
				_, _, _, err = rawclient.Of(cl).RebuildChunk(c.ctx, s, i, 0)
				require.ErrorIs(t, err, moraine.Lost)
			}
		}
		for _, i := range []int{-1, 6} {
			_, _, _, err = rawclient.Of(cl).RebuildChunk(c.ctx, s, i, 0)
			require.ErrorIs(t, err, moraine.InvalidArgument)
		}
		_, _, _, err = rawclient.Of(cl).RebuildChunk(c.ctx, &wire.Stripe{Id: 1}, 0, 0)
		require.ErrorIs(t, err, moraine.Corrupt)
	})
}

func TestPutRepaired(t *testing.T) {
	inCluster(t, 7, func(c *cluster) {
		cl := c.dialAs(memcluster.Peer(transport.RoleChunkserver, "n1"), config())
		defer cl.Close()
		owner := c.dialAs(memcluster.Peer(transport.RoleClient, "owner"), config())
		defer owner.Close()
		write(t, c, owner, "/f", bytesOf(1, 4*64<<10), 1<<30, false)
		s := stripesOf(t, c, owner, "/f")[0]
		data, _, release, err := rawclient.Of(cl).RebuildChunk(c.ctx, s, 3, 0)
		require.NoError(t, err)
		defer release()
		var to *memcluster.Host
		for _, h := range c.Hosts {
			used := false
			for _, ch := range s.Chunks {
				used = used || ch.Device == h.Device()
			}
			if !used {
				to = h
			}
		}
		intent := &wire.Intent{Stripe: s.Id, Index: 3, Device: to.Device(), Version: 2}
		permit := capabilitytest.Repair(memcluster.ClusterID, "n1", intent)
		require.NoError(t, rawclient.Of(cl).PutRepaired(c.ctx, s, intent, permit, data))
		require.NoError(t, rawclient.Of(cl).PutRepaired(c.ctx, s, intent, permit, data), "it is safe to repeat")
		held := to.Chunk(moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: 3})
		require.Equal(t, &memcluster.Chunk{Version: 2, CRC: s.Chunks[3].Crc, Tenant: s.Tenant, Data: held.Data}, held)
		require.Equal(t, data, held.Data)

		require.ErrorIs(t, rawclient.Of(cl).PutRepaired(c.ctx, s, intent, permit, data[1:]), moraine.InvalidArgument)
		to.Break(memcluster.Faults{Weak: true})
		require.ErrorIs(t, rawclient.Of(cl).PutRepaired(c.ctx, s, intent, permit, data), moraine.IOError)
		to.Kill()
		require.Error(t, rawclient.Of(cl).PutRepaired(c.within(5*time.Second), s, intent, permit, data))
	})
}

// Cached topology and extents are enough for reads without the metadata service.
func TestReadWithoutMetadata(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 1_000_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		got := make([]byte, len(data))
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		c.Elect("")
		c.Hosts[0].Kill()
		clear(got)
		require.NoError(t, r.ReadRange(c.within(5*time.Second), got, 0))
		require.Equal(t, data, got)
	})
}
