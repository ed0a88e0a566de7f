package heal_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	even   = wire.RebalanceState_REBALANCE_STATE_EVEN
	stuck  = wire.RebalanceState_REBALANCE_STATE_STUCK
	paused = wire.RebalanceState_REBALANCE_STATE_PAUSED
)

// moves counts the chunks of all moves, and those of moves that did not complete.
func (w *world) moves() (chunks, failed uint64) {
	w.t.Helper()
	for after := uint64(0); ; {
		jobs := w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Ended: true, After: after}}}).GetJobs()
		for _, j := range jobs.Jobs {
			if j.Kind == wire.JobKind_JOB_KIND_REBALANCE {
				chunks += j.Total
				if j.State == wire.JobState_JOB_STATE_FAILED {
					failed += j.Total
				}
			}
			after = j.Id
		}
		if !jobs.More {
			return chunks, failed
		}
	}
}

// held is what all devices hold together, and each.
func (w *world) held() (chunks uint64, each map[string]*wire.Device) {
	w.t.Helper()
	each = map[string]*wire.Device{}
	for _, h := range w.cluster().GetTopology().GetHosts() {
		each[h.Id] = h.Devices[0]
		chunks += h.Devices[0].Chunks
	}
	return chunks, each
}

func (w *world) rebalanced() *wire.Rebalance { return w.cluster().GetRebalance() }

// settled waits until devices are filled evenly and moved chunks are deleted at
// their old place.
func (w *world) settled() {
	w.t.Helper()
	w.until("devices are filled evenly, and what was moved is deleted", func() bool {
		c := w.cluster()
		return c.GetRebalance().GetState() == even && c.PendingBytes == 0
	})
	time.Sleep(10 * time.Second) // heartbeats report it
}

// TestAddedChunkserverIsFilled: a chunkserver that joins a cluster with files gets
// its share of their chunks automatically. Meanwhile the leader, a mover and a
// server that loses chunks are killed. In the end each device is within the band of
// the mean, and every byte reads right. As many hosts may be lost as before,
// nothing is leaked, and no chunk was moved to and fro.
func TestAddedChunkserverIsFilled(t *testing.T) {
	inWorld(t, incluster.Options{Metadata: 3, CapacityBytes: 16 << 20, Grace: 10 * time.Second}, func(w *world) {
		w.write(30)
		time.Sleep(5 * time.Second)
		before, _ := w.held()
		none := func(why string) {
			n, _ := w.moves()
			require.Zero(t, n, why)
		}
		none("nothing is to be moved yet")
		// Slowly, so that there is a middle.
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetRebalance{SetRebalance: &wire.SetRebalance{
			BytesPerSecond: proto.Uint64(1 << 20), Paused: proto.Bool(true)}}})
		added, err := w.AddChunkserver()
		require.NoError(t, err)
		require.NoError(t, w.WaitReady(w.ctx))
		w.until("it is found to be empty", func() bool { return w.rebalanced().GetOutside() > 0 })
		time.Sleep(20 * time.Second)
		none("it is paused")
		require.Equal(t, paused, w.rebalanced().State)
		require.NotZero(t, w.rebalanced().LeftBytes)
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetRebalance{SetRebalance: &wire.SetRebalance{Paused: proto.Bool(false)}}})
		w.until("chunks are moved", func() bool {
			n, _ := w.moves()
			return n > 0
		})

		leader := w.Leader()
		w.Kill(leader, "n3", added)
		w.until("another leads", func() bool { return w.Leader() != "" && w.Leader() != leader })
		require.NoError(t, w.Restart(leader, "n3", added))
		require.NoError(t, w.WaitReady(w.ctx))
		w.settled()

		after, each := w.held()
		require.Equal(t, before, after, "as many chunks as before, and none twice")
		mean := 0.0
		for _, d := range each {
			mean += float64(d.Used) / float64(d.Capacity) / float64(len(each))
		}
		for host, d := range each {
			require.InDelta(t, mean, float64(d.Used)/float64(d.Capacity), 0.0501, "how full the device of %s is", host)
		}
		moved, failed := w.moves()
		t.Logf("%d chunks moved, and %d more tried while servers died; %d on the new device of %d; the mean fill is %.3f",
			moved-failed, failed, each[added].Chunks, after, mean)
		require.LessOrEqual(t, moved-failed, each[added].Chunks, "every move went to the new device")
		time.Sleep(time.Minute)
		now, _ := w.moves()
		require.Equal(t, moved, now, "nothing is moved once devices are filled evenly")
		require.Zero(t, w.cluster().LeakedBytes)
		require.NoError(t, w.Check())
		w.readAll()
		w.Kill(added, "n1")
		w.readAll()
	})
}
