package restores_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/fsck"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
)

// fsck checks everything, once.
func (w *world) fsck(cfg fsck.Config) (*fsck.Checker, *fsck.Report) {
	w.t.Helper()
	d := w.Dialer(transport.RoleAdmin, "checker")
	defer d.Close()
	c := fsck.New(cfg, fsck.Deps{Meta: rawclient.Of(w.admin).Meta, Chunks: d.Chunks, Walk: w.admin.Walk})
	r, err := c.Run(w.ctx)
	require.NoError(w.t, err)
	return c, r
}

// TestABackupRestoresWhatWentToLaterHosts: after a backup three hosts join, and two
// are drained to them. The restored metadata does not know the new hosts' devices,
// and gives them new numbers when they register; their chunks are adopted.
func TestABackupRestoresWhatWentToLaterHosts(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 6, Grace: 5 * time.Second}, func(w *world) {
		for i := range 6 {
			w.put(fmt.Sprintf("/f%d", i), 600<<10+i*1000, byte(i))
		}
		backup := w.backup()
		for range 3 {
			_, err := w.AddChunkserver()
			require.NoError(t, err)
		}
		require.NoError(t, w.WaitReady(w.ctx))
		w.drain("n1", "n2", "n3", "n4")
		later := 0
		for _, host := range []string{"n7", "n8", "n9"} {
			later += len(w.listed(host))
		}
		require.NotZero(t, later, "nothing went to the hosts that joined")
		w.restore(backup)
		w.settled()
		require.Empty(t, w.unreadable())
		require.Zero(t, w.cluster().LostStripes)
		require.NoError(t, w.Check())
	})
}

// TestFsckOfARestoredState: while a host that the backup knows is down nothing
// counts as missing, which fsck says, and no flag deletes a chunk that fits a
// record. When the host is back the check is clean, after duplicates are deleted.
func TestFsckOfARestoredState(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 7, Grace: 5 * time.Second, RepairGrace: time.Hour}, func(w *world) {
		for i := range 4 {
			w.put(fmt.Sprintf("/f%d", i), 600<<10+i*1000, byte(i))
		}
		backup := w.backup()
		w.drain("n1", "n2", "n3", "n4")
		w.Kill("n5")
		held := map[string]int{}
		for _, host := range []string{"n1", "n2", "n3", "n4", "n6", "n7"} {
			held[host] = len(w.listed(host))
		}
		w.restore(backup)
		w.until("all but the dead host report", func() bool { return w.cluster().Unreported <= 1 })
		time.Sleep(30 * time.Second)
		require.EqualValues(t, 1, w.cluster().Unreported)
		checker, r := w.fsck(fsck.Config{Repair: true, Accept: true})
		require.False(t, r.Clean())
		require.Contains(t, fmt.Sprint(r.NotChecked), "1 devices have not reported since the metadata was restored")
		for _, f := range r.Findings {
			require.NotEqual(t, fsck.Missing, f.Fault, "%+v", f)
		}
		dropped, err := checker.Drop(w.ctx, r.Findings)
		require.NoError(t, err)
		require.Zero(t, dropped)
		time.Sleep(time.Minute)
		for host, n := range held {
			require.Len(t, w.listed(host), n, "%s has deleted something", host)
		}
		require.NoError(t, w.Restart("n5"))
		require.NoError(t, w.WaitReady(w.ctx))
		w.settled()
		require.Zero(t, w.cluster().Unreported)
		require.Empty(t, w.unreadable())
		w.until("what is there twice is deleted", func() bool { _, r = w.fsck(fsck.Config{}); return r.Clean() })
		require.NoError(t, w.Check())
	})
}
