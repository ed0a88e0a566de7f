package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
)

// pinnedPool returns a pool of 6 MiB on a tmpfs of 8 MiB, of which 6 MiB are in a file that nobody can remove:
// as if a reader kept what it had read. free ends the file.
func pinnedPool(t *testing.T) (p *pool, free func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir, err := os.MkdirTemp("", "moraine-pool-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m,mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	p, err = newPool(dir, 3*hugePage)
	require.NoError(t, err)
	f, err := os.Create(filepath.Join(dir, "pinned"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, unix.Fallocate(int(f.Fd()), 0, 0, 3*hugePage))
	require.NoError(t, os.Remove(f.Name()))
	return p, func() { _ = f.Close() }
}

// TestASaveWaitsForPagesThatOthersKeepMapped: the pool does not count them, and a save does not fail before its
// patience is over.
func TestASaveWaitsForPagesThatOthersKeepMapped(t *testing.T) {
	p, free := pinnedPool(t)
	spare := func() (freed, more bool) { return false, false }
	first, err := p.take(t.Context(), want{uid: 1, bytes: 1}, spare)
	require.NoError(t, err)
	p.placed()
	_, err = p.take(t.Context(), want{uid: 1, bytes: 1, patience: time.Hour}, spare)
	require.ErrorIs(t, err, moraine.NoSpace, "it must not wait")
	_, err = p.take(t.Context(), want{uid: 1, bytes: 1, wait: true, patience: time.Millisecond}, spare)
	require.ErrorIs(t, err, moraine.NoSpace)
	require.ErrorContains(t, err, "keep what they have read")
	go func() {
		time.Sleep(100 * time.Millisecond) // the take most likely waits by now; if it does not, it finds the pages
		free()
	}()
	second, err := p.take(t.Context(), want{uid: 1, bytes: 1, wait: true, patience: time.Hour}, spare)
	require.NoError(t, err)
	p.placed()
	p.discard(first)
	p.discard(second)
	require.Zero(t, p.inUse())
}

// TestFreeSlotsGiveTheirPagesWhereTheTmpfsIsFull: also those of another user, and those that a part gives back.
func TestFreeSlotsGiveTheirPagesWhereTheTmpfsIsFull(t *testing.T) {
	p, _ := pinnedPool(t)
	part, err := p.take(t.Context(), want{uid: 1, bytes: 1}, nil)
	require.NoError(t, err)
	p.placed()
	spare := func() (freed, more bool) {
		if part == nil {
			return false, false
		}
		p.put(part)
		part = nil
		return true, false
	}
	for uid := uint32(2); uid <= 3; uid++ {
		s, err := p.take(t.Context(), want{uid: uid, bytes: 1}, spare)
		require.NoError(t, err)
		p.placed()
		p.put(s)
	}
	require.Equal(t, int64(hugePage), p.inUse())
}
