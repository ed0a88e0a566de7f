package mem_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/mem"
)

// memoryDir is a directory of a file system in memory. The test is skipped if there
// is none.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "moraine-test-")
	if err != nil {
		t.Skip("no file system in memory on this machine: ", err)
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// TestAnArenaOfAPath takes its memory from a file system in memory, and leaves no
// file there.
func TestAnArenaOfAPath(t *testing.T) {
	dir := memoryDir(t)
	a := openArena(t, mem.ArenaConfig{Bytes: 32*mib + 5000, Path: dir, Prefault: true})
	require.EqualValues(t, 32*mib+4096, a.Stats().Bytes)
	b, err := a.Get(t.Context(), mib)
	require.NoError(t, err)
	b.Bytes()[5] = 7
	b.Release()
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, names)
}

// TestAnArenaOfADiskIsRefused: memory whose pages a kernel writes to a disk is
// refused.
func TestAnArenaOfADiskIsRefused(t *testing.T) {
	dir := t.TempDir()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	if st.Type == unix.TMPFS_MAGIC {
		t.Skip("temporary files are in memory here")
	}
	_, err := mem.OpenArena(mem.ArenaConfig{Bytes: 32 * mib, Path: dir})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "hugetlbfs")
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, names)
}

// TestAnArenaOfHugePages takes whole huge pages for any size, and frees them.
func TestAnArenaOfHugePages(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "hugetlbfs", 0, ""); err != nil {
		t.Skip("hugetlbfs cannot be mounted here: ", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	a, err := mem.OpenArena(mem.ArenaConfig{Bytes: 33*mib + 4096, Path: dir, Prefault: true})
	if err != nil {
		require.ErrorIs(t, err, moraine.NoSpace)
		t.Skip("the machine keeps no huge pages (vm.nr_hugepages): ", err)
	}
	require.EqualValues(t, (33*mib+4096)/st.Bsize*st.Bsize, a.Stats().Bytes)
	b, err := a.Get(t.Context(), mib)
	require.NoError(t, err)
	b.Bytes()[5] = 7
	b.Release()
	a.Close()
}

// TestAnArenaOnANode asks the kernel on which node the arena's pages lie.
func TestAnArenaOnANode(t *testing.T) {
	a, err := mem.OpenArena(mem.ArenaConfig{Bytes: 32 * mib, Node: 1, Prefault: true})
	if err != nil {
		t.Skipf("the kernel binds no memory here: %v", err)
	}
	defer a.Close()
	b, err := a.Get(t.Context(), mib)
	require.NoError(t, err)
	defer b.Release()
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		t.Skip("the kernel does not say where pages lie: ", err)
	}
	at := regexp.MustCompile(`(?m)^[0-9a-f]+ bind:0 .* N0=(\d+)`).FindSubmatch(maps)
	require.NotNil(t, at, "no mapping is bound to node 0")
	var pages int
	_, err = fmt.Sscan(string(at[1]), &pages)
	require.NoError(t, err)
	require.Positive(t, pages)
	_, err = mem.OpenArena(mem.ArenaConfig{Bytes: 32 * mib, Node: 900, Prefault: true})
	require.ErrorContains(t, err, "this machine has nodes 0")
}
