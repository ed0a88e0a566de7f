package heal_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// smalls makes small files below a directory.
func (w *world) smalls(dir string, n int) {
	w.t.Helper()
	_, err := w.admin.MkdirAll(w.ctx, dir, 0o755)
	require.NoError(w.t, err)
	for i := range n {
		b := make([]byte, 20_000+i*977%30_000)
		_, _ = rand.NewChaCha8([32]byte{byte(i), byte(len(dir)), 9}).Read(b)
		name := fmt.Sprintf("%s/s%d", dir, i)
		f, err := w.admin.Create(w.ctx, name, client.CreateOptions{})
		require.NoError(w.t, err)
		_, err = f.Write(b)
		require.NoError(w.t, err)
		_, err = f.Commit(w.ctx)
		require.NoError(w.t, err)
		w.files[name] = b
	}
}

// TestPackedFilesGiveSpaceBack: small files of many directories of a project take
// three times their size on the devices, and half as much after packing. Meanwhile
// the leader and a mover are killed. Every byte reads right, nothing is leaked, the
// state is sound, and two hosts may be lost.
func TestPackedFilesGiveSpaceBack(t *testing.T) {
	inWorld(t, incluster.Options{Metadata: 3, Chunkservers: 7, Grace: 10 * time.Second, RewriteEvery: 10 * time.Second, PackAfter: 30 * time.Second}, func(w *world) {
		for n := range 10 {
			w.smalls(fmt.Sprintf("/team/project/d%d/e", n), 8)
		}
		size := 0
		for _, b := range w.files {
			size += len(b)
		}
		time.Sleep(10 * time.Second)
		fresh := w.used()
		require.Greater(t, fresh, uint64(3*size))
		chosen := func() uint64 { return w.cluster().GetRewriting().GetChosenFiles() }
		w.until("files are packed", func() bool { return chosen() > 0 })
		leader := w.Leader()
		w.Kill(leader, "n3")
		w.until("another leads", func() bool { return w.Leader() != "" && w.Leader() != leader })
		require.NoError(t, w.Restart(leader, "n3"))
		require.NoError(t, w.WaitReady(w.ctx))
		quiet := func() bool {
			c := w.cluster()
			r := c.GetRewriting()
			return c.PendingBytes == 0 && r.GetRounds() > 3 && !r.GetLooking() && r.GetChosenFiles() == 0
		}
		w.until("all are packed", quiet)
		w.sound()
		time.Sleep(10 * time.Second)
		now := w.used()
		t.Logf("%d KiB take %d, and %d when they are packed", size>>10, fresh>>10, now>>10)
		require.Less(t, now, fresh*6/10)
		require.Zero(t, w.cluster().LeakedBytes)
		require.NoError(t, w.Check())
		w.readAll()
		w.Kill("n1", "n2")
		w.readAll()
	})
}
