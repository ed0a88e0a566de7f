package restores_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport/wire"
)

// TestABackupWithinTheHorizonRestoresWhole: after a backup every file is
// overwritten or removed, small ones are packed, mostly dead stripes rewritten, and
// hosts drained. A restore within the horizon brings back every byte of the backup,
// though no file has named them for minutes, in which every device has reported twice.
func TestABackupWithinTheHorizonRestoresWhole(t *testing.T) {
	opts := incluster.Options{Chunkservers: 7, Grace: 5 * time.Second, RewriteEvery: 20 * time.Second, PackAfter: 30 * time.Second, BackupHorizon: 40 * time.Minute}
	inWorld(t, opts, func(w *world) {
		for i := range 4 {
			w.put(fmt.Sprintf("/f%d", i), 600<<10+i*1000, byte(i))
		}
		for i := range 8 {
			w.put(fmt.Sprintf("/s%d", i), 10_000+i*1000, byte(i))
		}
		backup, then := w.backup(), maps.Clone(w.files)
		h := &historian{world: w, rng: rand.New(rand.NewPCG(1, 2))}
		for range 12 {
			h.overwrite()
		}
		w.until("small files are packed", func() bool { return w.cluster().GetRewriting().GetChosenFiles() > 0 })
		for range 6 {
			h.remove()
		}
		for _, host := range []string{"n1", "n2"} { // dead chunks stay on them
			w.set(host, stateDraining)
			w.until("drain of "+host, func() bool {
				c := w.cluster()
				return c.PendingBytes == 0 && c.RepairQueued == 0 && c.GetHealing().GetScanning() == 0
			})
			w.set(host, stateIn)
		}
		time.Sleep(150 * time.Second)
		c := w.cluster()
		require.NotZero(t, c.KeptBytes)
		require.Zero(t, c.PendingBytes, "what is kept is counted apart")
		require.EqualValues(t, 40*60*1000, c.BackupHorizonMillis)
		require.Equal(t, c.BackupHorizonMillis, c.BackupHorizonNowMillis)
		w.files = then
		w.restore(backup)
		w.settled()
		require.Empty(t, w.unreadable())
		require.Zero(t, w.cluster().LostStripes)
		require.NoError(t, w.Check())
	})
}

// TestKeptBytesGiveWay: bytes kept for backups are deleted after the horizon. If a
// device becomes full they are deleted before, the oldest first, so that writes
// have space. The reported horizon is then shorter.
func TestKeptBytesGiveWay(t *testing.T) {
	opts := incluster.Options{Chunkservers: 3, SegmentBytes: 512 << 10, CapacityBytes: 12 << 20, Grace: 5 * time.Second, BackupHorizon: 4 * time.Minute}
	inWorld(t, opts, func(w *world) {
		w.put("/kept", 300<<10, 1)
		require.NoError(t, w.admin.Remove(w.ctx, "/kept"))
		delete(w.files, "/kept")
		time.Sleep(2 * time.Minute)
		require.NotZero(t, w.cluster().KeptBytes)
		time.Sleep(150 * time.Second)
		require.Zero(t, w.cluster().KeptBytes, "the horizon is over")

		w.put("/stays", 300<<10, 1)
		for i := range 90 { // twice what the devices can keep
			name := fmt.Sprintf("/f%d", i)
			w.put(name, 300<<10, byte(i))
			require.NoError(t, w.admin.Remove(w.ctx, name))
			delete(w.files, name)
			time.Sleep(2 * time.Second)
		}
		c := w.cluster()
		require.NotZero(t, c.KeptBytes)
		require.Less(t, c.BackupHorizonNowMillis, c.BackupHorizonMillis)
		for _, h := range c.GetTopology().GetHosts() {
			for _, d := range h.Devices {
				require.Equal(t, wire.DeviceState_DEVICE_STATE_IN, d.State)
				require.Less(t, d.Used, d.Capacity*9/10)
			}
		}
		require.Empty(t, w.unreadable())
		require.NoError(t, w.Check())
	})
}
