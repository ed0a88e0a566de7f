package client_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/wire"
)

// stripesOf returns the records of a file's stripes.
func stripesOf(t *testing.T, c *cluster, cl *client.Client, path string) []*wire.Stripe {
	t.Helper()
	a, err := cl.Stat(c.ctx, path)
	require.NoError(t, err)
	resp, err := cl.Raw().Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{
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
				want := h.chunks[id]
				for name, damage := range map[string]func(){
					"there": func() {},
					"lost":  func() { delete(h.chunks, id) },
					"wrong": func() { h.chunks[id] = &heldChunk{1, want.crc, 0, bytesOf(5, len(want.data))} },
					"other too": func() {
						delete(h.chunks, id)
						oh.chunks[other] = &heldChunk{1, 1, 0, bytesOf(6, len(want.data))}
					},
				} {
					keep := oh.chunks[other]
					damage()
					data, sum, release, err := cl.Raw().RebuildChunk(c.ctx, s, i, 0)
					require.NoError(t, err, "%s %s", id, name)
					require.Equal(t, want.data, data, name)
					require.Equal(t, ch.Crc, sum)
					release()
					h.chunks[id], oh.chunks[other] = want, keep
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
		_, _, _, err := cl.Raw().RebuildChunk(c.ctx, s, 2, 0)
		require.ErrorIs(t, err, moraine.Corrupt)
		s.Chunks[2].Crc--
		for _, h := range c.hosts[:3] {
			damages["lost"](h)
		}
		for i, ch := range s.Chunks {
			if c.hostOf(ch.Device).count() == 0 {
				_, _, _, err = cl.Raw().RebuildChunk(c.ctx, s, i, 0)
				require.ErrorIs(t, err, moraine.Lost)
			}
		}
		for _, i := range []int{-1, 6} {
			_, _, _, err = cl.Raw().RebuildChunk(c.ctx, s, i, 0)
			require.ErrorIs(t, err, moraine.InvalidArgument)
		}
		_, _, _, err = cl.Raw().RebuildChunk(c.ctx, &wire.Stripe{Id: 1}, 0, 0)
		require.ErrorIs(t, err, moraine.Corrupt)
	})
}

func TestPutRepaired(t *testing.T) {
	inCluster(t, 7, func(c *cluster) {
		cl := c.dialAs(c.peer(transport.RoleChunkserver, "n1"), config())
		defer cl.Close()
		owner := c.dialAs(c.peer(transport.RoleClient, "owner"), config())
		defer owner.Close()
		write(t, c, owner, "/f", bytesOf(1, 4*64<<10), 1<<30, false)
		s := stripesOf(t, c, owner, "/f")[0]
		data, _, release, err := cl.Raw().RebuildChunk(c.ctx, s, 3, 0)
		require.NoError(t, err)
		defer release()
		var to *chunkHost
		for _, h := range c.hosts {
			used := false
			for _, ch := range s.Chunks {
				used = used || ch.Device == h.device
			}
			if !used {
				to = h
			}
		}
		intent := &wire.Intent{Stripe: s.Id, Index: 3, Device: to.device, Version: 2}
		permit := capabilitytest.Repair(clusterUUID, "n1", intent)
		require.NoError(t, cl.Raw().PutRepaired(c.ctx, s, intent, permit, data))
		require.NoError(t, cl.Raw().PutRepaired(c.ctx, s, intent, permit, data), "it is safe to repeat")
		held := to.chunks[moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: 3}]
		require.Equal(t, &heldChunk{2, s.Chunks[3].Crc, s.Tenant, held.data}, held)
		require.Equal(t, data, held.data)

		require.ErrorIs(t, cl.Raw().PutRepaired(c.ctx, s, intent, permit, data[1:]), moraine.InvalidArgument)
		to.weak = true
		require.ErrorIs(t, cl.Raw().PutRepaired(c.ctx, s, intent, permit, data), moraine.IOError)
		to.kill()
		require.Error(t, cl.Raw().PutRepaired(c.within(5*time.Second), s, intent, permit, data))
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
		c.group.Elect("")
		c.hosts[0].kill()
		clear(got)
		require.NoError(t, r.ReadRange(c.within(5*time.Second), got, 0))
		require.Equal(t, data, got)
	})
}
