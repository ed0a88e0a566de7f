package client_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// repairs does the waiting repairs, each where the leader wants it, and returns how many chunks
// it rebuilt.
func (c *cluster) repairs(cl *client.Client) (rebuilt int) {
	c.t.Helper()
	for {
		time.Sleep(15 * time.Second)
		synctest.Wait()
		h := c.Hosts[5]
		resp, err := h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
			Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR}, Max: 1}}})
		require.NoError(c.t, err)
		if len(resp.GetJobs().Jobs) == 0 {
			return rebuilt
		}
		j := resp.GetJobs().Jobs[0]
		for _, task := range j.Repairs {
			for _, in := range task.Intents {
				data, sum, release, err := rawclient.Of(cl).RebuildChunk(c.ctx, task.Stripe, int(in.Index), task.Missing)
				require.NoError(c.t, err)
				to := c.hostOf(in.Device)
				to.SetChunk(moraine.ChunkID{Stripe: moraine.StripeID(in.Stripe), Index: uint8(in.Index)},
					&memcluster.Chunk{Version: in.Version, CRC: sum, Tenant: task.Stripe.Tenant, Data: bytes.Clone(data)})
				release()
				rebuilt++
			}
			_, err := h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
				Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: task.Intents}}})
			require.NoError(c.t, err)
		}
		_, err = h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}})
		require.NoError(c.t, err)
	}
}

// A chunk that was rebuilt in its place is good; readers with the earlier record do not report
// it again. With the new record they report it when it turns bad again.
func TestAChunkRebuiltInPlaceIsLeftAlone(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		first, second, mover := c.dial("c1", config()), c.dial("c2", config()), c.dial("c3", config())
		for _, cl := range []*client.Client{first, second, mover} {
			defer cl.Close()
		}
		data := bytesOf(7, 4*64<<10)
		write(t, c, first, "/f", data, 1<<30, false)
		r, err := second.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		got := make([]byte, len(data))
		require.NoError(t, r.ReadRange(c.ctx, got, 0))

		bad := c.hostOf(stripesOf(t, c, mover, "/f")[0].Chunks[0].Device)
		for range 2 {
			was := stripesOf(t, c, mover, "/f")[0]
			damages["flipped bit"](bad)
			require.True(t, bytes.Equal(data, read(t, c, first, "/f")))
			require.Equal(t, 1, c.repairs(mover))
			now := stripesOf(t, c, mover, "/f")[0]
			require.Greater(t, now.Version, was.Version)
			for i := range now.Chunks {
				require.Equal(t, was.Chunks[i].Device, now.Chunks[i].Device, "the chunk is rebuilt in its place")
			}
			for range 3 {
				require.NoError(t, r.ReadRange(c.ctx, got, 0))
				require.True(t, bytes.Equal(data, got))
			}
			require.Zero(t, c.repairs(mover))
			require.Equal(t, now.Version, stripesOf(t, c, mover, "/f")[0].Version)
		}
	})
}

// TestCloseReportsWhatReadsFound: a client that reads a file with a bad chunk reports it even
// if it is closed at once.
func TestCloseReportsWhatReadsFound(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		writer := c.dial("c1", config())
		defer writer.Close()
		data := bytesOf(7, 4*64<<10)
		write(t, c, writer, "/f", data, 1<<30, false)
		damages["flipped bit"](c.hostOf(stripesOf(t, c, writer, "/f")[0].Chunks[0].Device))
		reader := c.dial("c2", config())
		require.True(t, bytes.Equal(data, read(t, c, reader, "/f")))
		require.NoError(t, reader.Close())
		time.Sleep(5 * time.Second) // the host verifies it after its next heartbeat
		resp, err := rawclient.Of(writer).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		require.NoError(t, err)
		require.EqualValues(t, 1, resp.GetCluster().GetRepairQueued())
	})
}
