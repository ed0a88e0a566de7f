package heal_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// overwrite overwrites a part of a file, durably.
func (w *world) overwrite(name string, off, n int) {
	w.t.Helper()
	a, err := w.admin.Stat(w.ctx, name)
	require.NoError(w.t, err)
	h, err := w.admin.Inodes().OpenHandle(w.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(w.t, err)
	b := w.files[name][off : off+n]
	_, _ = rand.NewChaCha8([32]byte{byte(off), byte(n), byte(n >> 8)}).Read(b)
	_, err = h.WriteAt(w.ctx, b, int64(off))
	require.NoError(w.t, err)
	require.NoError(w.t, h.Sync(w.ctx))
	require.NoError(w.t, h.Close(w.ctx))
}

func (w *world) used() (bytes uint64) {
	w.t.Helper()
	_, each := w.held()
	for _, d := range each {
		bytes += d.Used
	}
	return bytes
}

// TestMostlyDeadStripesGiveTheirSpaceBack: files are overwritten except for their
// edges, so that no stripe dies wholly. The space of the overwritten bytes returns
// automatically, while the leader and a mover are killed. Every byte reads right,
// nothing is leaked, as many hosts may be lost as before, and the rewrites end.
func TestMostlyDeadStripesGiveTheirSpaceBack(t *testing.T) {
	inWorld(t, incluster.Options{Metadata: 3, Grace: 30 * time.Second, RewriteEvery: 10 * time.Second}, func(w *world) {
		w.write(16)
		time.Sleep(10 * time.Second)
		fresh := w.used()
		for name, data := range w.files {
			w.overwrite(name, 20_000, len(data)-40_000)
		}
		time.Sleep(10 * time.Second) // heartbeats report it
		worn := w.used()
		require.Greater(t, worn, fresh+fresh/2, "what was written over is there still")
		chosen := func() uint64 { return w.cluster().GetRewriting().GetChosenStripes() }
		w.until("stripes are rewritten", func() bool { return chosen() > 2 })
		leader := w.Leader()
		w.Kill(leader, "n3")
		w.until("another leads", func() bool { return w.Leader() != "" && w.Leader() != leader })
		require.NoError(t, w.Restart(leader, "n3"))
		require.NoError(t, w.WaitReady(w.ctx))
		quiet := func() bool {
			c := w.cluster()
			r := c.GetRewriting()
			return c.PendingBytes == 0 && r.GetRounds() > 1 && !r.GetLooking() && r.GetDeadBytes() == 0 && r.GetStripes() > 0
		}
		w.until("nothing is dead in what is in use", quiet)
		w.sound()
		time.Sleep(10 * time.Second)
		now := w.used()
		t.Logf("%d KiB written, %d when they were written over, %d when that was rewritten", fresh>>10, worn>>10, now>>10)
		require.Less(t, now, worn-(worn-fresh)/2)
		require.Zero(t, w.cluster().LeakedBytes)
		require.NoError(t, w.Check())
		w.readAll()
		for range 12 {
			time.Sleep(4 * time.Second)
			require.Zero(t, chosen(), "nothing is rewritten once nothing is dead")
		}
		w.Kill("n1", "n2")
		w.readAll()
	})
}
