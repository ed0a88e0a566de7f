package restores_test

import (
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/vfs"
)

// kept are the backups on a metadata server's disk, oldest first, with the other
// files there.
func (w *world) kept(node string) []string {
	w.t.Helper()
	names, err := w.Disk(node).List(incluster.BackupDir)
	require.NoError(w.t, err)
	return names
}

// readKept returns an automatic backup of a server.
func (w *world) readKept(node, name string) []byte {
	w.t.Helper()
	f, err := w.Disk(node).Open(path.Join(incluster.BackupDir, name), vfs.Read)
	require.NoError(w.t, err)
	defer f.Close()
	size, err := f.Size()
	require.NoError(w.t, err)
	b := make([]byte, size)
	_, err = f.ReadAt(b, 0)
	require.NoError(w.t, err)
	return b
}

// TestBackupsByThemselves: the leader takes a backup when it begins to lead and at
// each interval, and keeps the newest three. A full disk, or a failed rename, costs
// none of them, and is reported. Another leader takes one of its own at once, which
// can be restored.
func TestBackupsByThemselves(t *testing.T) {
	var broken atomic.Int32 // the kind of operation that fails below BackupDir, +1
	opts := incluster.Options{Metadata: 3, Chunkservers: 1, BackupEvery: 10 * time.Second, Rule: func(_ string, op vfs.Op) error {
		if strings.HasPrefix(op.Path, incluster.BackupDir+"/") && int32(op.Kind)+1 == broken.Load() {
			return syscall.ENOSPC
		}
		return nil
	}}
	inWorld(t, opts, func(w *world) {
		leader := w.Leader()
		time.Sleep(5 * time.Second)
		require.Len(t, w.kept(leader), 1)
		w.put("/early", 100_000, 1)
		time.Sleep(45 * time.Second)
		require.Equal(t, leader, w.Leader())
		last := w.kept(leader)
		require.Len(t, last, 3)
		for _, name := range last {
			require.Regexp(t, `^metadata-[0-9a-f]{8}-\d{8}T\d{6}Z\.backup$`, name)
		}
		b := w.cluster().Backups
		require.EqualValues(t, 3, b.Kept)
		require.Empty(t, b.Error)
		require.False(t, b.Overdue)
		require.Less(t, b.AgeMillis, int64(time.Minute/time.Millisecond))

		for _, kind := range []vfs.OpKind{vfs.OpWrite, vfs.OpRename} {
			broken.Store(int32(kind) + 1)
			time.Sleep(80 * time.Second) // a new leader is overdue after two minutes at the earliest
			require.Equal(t, last, w.kept(leader), "a backup that fails costs none, and leaves nothing")
			b = w.cluster().Backups
			require.Contains(t, b.Error, "no space left", kind)
			require.True(t, b.Overdue)
			broken.Store(0)
			time.Sleep(25 * time.Second)
			b = w.cluster().Backups
			require.Empty(t, b.Error)
			require.False(t, b.Overdue)
			last = w.kept(leader)
			require.Len(t, last, 3)
		}

		w.Kill(leader)
		w.until("another leads", func() bool { return w.Leader() != "" && w.Leader() != leader })
		time.Sleep(5 * time.Second)
		next := w.Leader()
		require.Len(t, w.kept(next), 1)
		taken := w.readKept(next, w.kept(next)[0])
		w.put("/late", 10_000, 2)
		delete(w.files, "/late")
		w.restore(taken)
		w.settled()
		require.Empty(t, w.unreadable())
		require.Len(t, w.files, 1)
	})
}

// TestBackupsAfterAClockWasAhead: a clock that ran ahead has left backups with
// future times, as many as are kept. Later backups replace them, one by one, and
// not the other way round.
func TestBackupsAfterAClockWasAhead(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 1, BackupEvery: 30 * time.Second}, func(w *world) {
		leader := w.Leader()
		time.Sleep(10 * time.Second)
		for _, day := range []string{"01", "02", "03"} {
			f, err := w.Disk(leader).Open(path.Join(incluster.BackupDir, "metadata-696e636c-209901"+day+"T000000Z.backup"), vfs.Create)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		for _, left := range []int{2, 1, 0, 0} {
			time.Sleep(30 * time.Second)
			ahead := 0
			for _, name := range w.kept(leader) {
				if strings.Contains(name, "-2099") {
					ahead++
				}
			}
			require.LessOrEqual(t, ahead, left, "%v", w.kept(leader))
			require.Len(t, w.kept(leader), 3)
			require.False(t, w.cluster().Backups.Overdue)
		}
	})
}
