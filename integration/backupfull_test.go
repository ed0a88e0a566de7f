package integration_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestBackupToAFullDisk takes backups of the metadata onto a full file system, and
// onto one with space for half. Each ends with one line that says so, and leaves no
// file. With enough space the same command works.
func TestBackupToAFullDisk(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "backups")
	smallDisk(t, disk, 64<<20)
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	works(t, env, "mkdir", "moraine:///a")
	whole := filepath.Join(t.TempDir(), "whole")
	works(t, env, "metadata", "backup", whole)
	info, err := os.Stat(whole)
	require.NoError(t, err)

	before, err := os.ReadDir(disk)
	require.NoError(t, err)
	backup, filler := filepath.Join(disk, "backup"), filepath.Join(disk, "filler")
	for _, free := range []int64{0, info.Size() / 2} {
		fillUp(t, filler, free)
		requireRefused(t, invoke(t, env, "metadata", "backup", backup), 1, "no space left on device", backup)
		require.NoError(t, os.Remove(filler))
		after, err := os.ReadDir(disk)
		require.NoError(t, err)
		require.Equal(t, len(before), len(after), "%v", after)
		works(t, env, "mkdir", "-p", "moraine:///b")
	}
	works(t, env, "metadata", "backup", backup)
	require.FileExists(t, backup)
	parts, err := filepath.Glob(filepath.Join(disk, "*.part"))
	require.NoError(t, err)
	require.Empty(t, parts)
}

// fillUp writes name until its file system is full, and then frees the given bytes.
func fillUp(t *testing.T, name string, free int64) {
	t.Helper()
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	var size int64
	for p := make([]byte, 1<<20); len(p) >= 4<<10; p = p[:len(p)/2] {
		for err = nil; err == nil; {
			var n int
			n, err = f.WriteAt(p, size)
			size += int64(n)
		}
		require.ErrorIs(t, err, unix.ENOSPC)
	}
	require.NoError(t, f.Truncate(size-free))
}
