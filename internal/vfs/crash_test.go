package vfs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
)

// outcomes cuts the power 400 times and counts the distinct results of look.
func outcomes(mem *vfs.Mem, look func(after *vfs.Mem) string) map[string]int {
	seen := map[string]int{}
	for seed := range uint64(400) {
		seen[look(mem.Crash(rand.New(rand.NewPCG(seed, 1))))]++
	}
	return seen
}

func keys(m map[string]int) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}

func listing(t *testing.T) func(after *vfs.Mem) string {
	return func(after *vfs.Mem) string {
		names, err := after.List("/")
		require.NoError(t, err)
		var b strings.Builder
		for _, name := range names {
			fmt.Fprintf(&b, "%s=%s ", name, read(t, after, "/"+name))
		}
		return strings.TrimSpace(b.String())
	}
}

func TestCrashFileWithoutItsName(t *testing.T) {
	mem := vfs.NewMem(1)
	write(t, mem, "/f", "synced")
	require.ElementsMatch(t, []string{"", "f=synced"}, keys(outcomes(mem, listing(t))),
		"synced bytes do not keep the name")
	require.NoError(t, mem.SyncDir("/"))
	require.Equal(t, []string{"f=synced"}, keys(outcomes(mem, listing(t))))
}

func TestCrashNameWithoutItsBytes(t *testing.T) {
	mem := vfs.NewMem(1)
	f, err := mem.Open("/f", vfs.Create)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("abc"), 0)
	require.NoError(t, err)
	require.NoError(t, mem.SyncDir("/"))
	require.ElementsMatch(t, []string{"f=", "f=abc", "f=\x00\x00\x00"}, keys(outcomes(mem, listing(t))),
		"the size and the block survive each for itself")
}

func TestCrashRename(t *testing.T) {
	mem := vfs.NewMem(1)
	write(t, mem, "/CURRENT", "old")
	require.NoError(t, mem.SyncDir("/"))
	write(t, mem, "/tmp", "new")
	require.NoError(t, mem.Rename("/tmp", "/CURRENT"))
	require.ElementsMatch(t, []string{"CURRENT=old", "CURRENT=old tmp=new", "CURRENT=new"},
		keys(outcomes(mem, listing(t))), "a rename is atomic, and may be lost")
	require.NoError(t, mem.SyncDir("/"))
	require.Equal(t, []string{"CURRENT=new"}, keys(outcomes(mem, listing(t))))
}

func TestCrashLinksAndRemovals(t *testing.T) {
	mem := vfs.NewMem(1)
	write(t, mem, "/a", "A")
	require.NoError(t, mem.SyncDir("/"))
	require.NoError(t, mem.Link("/a", "/b"))
	require.NoError(t, mem.Remove("/a"))
	require.ElementsMatch(t, []string{"a=A", "a=A b=A", "b=A", ""}, keys(outcomes(mem, listing(t))),
		"independent names in any order")
}

func TestCrashLosesWholeDirectory(t *testing.T) {
	mem := vfs.NewMem(1)
	require.NoError(t, mem.MkdirAll("/d"))
	write(t, mem, "/d/f", "F")
	require.NoError(t, mem.SyncDir("/d"))
	look := func(after *vfs.Mem) string {
		if _, err := after.Stat("/d"); err != nil {
			return "none"
		}
		return read(t, after, "/d/f")
	}
	require.ElementsMatch(t, []string{"none", "F"}, keys(outcomes(mem, look)))
	require.NoError(t, mem.SyncDir("/"))
	require.Equal(t, []string{"F"}, keys(outcomes(mem, look)))
}

func TestCrashAnySubsetOfBlocks(t *testing.T) {
	mem := vfs.NewMem(1)
	old := bytes.Repeat([]byte{'o'}, 3*4096)
	write(t, mem, "/f", string(old))
	require.NoError(t, mem.SyncDir("/"))
	f, err := mem.Open("/f", vfs.Write)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte{'n'}, 3*4096), 0)
	require.NoError(t, err)
	look := func(after *vfs.Mem) string {
		got := read(t, after, "/f")
		for i := range 3 {
			require.Equal(t, strings.Repeat(got[i*4096:i*4096+1], 4096), got[i*4096:(i+1)*4096], "a block is whole")
		}
		return string([]byte{got[0], got[4096], got[8192]})
	}
	require.Len(t, outcomes(mem, look), 8, "all subsets")
	require.NoError(t, f.Sync())
	require.Equal(t, []string{"nnn"}, keys(outcomes(mem, look)))
}

func TestCrashTruncateAndPunch(t *testing.T) {
	mem := vfs.NewMem(1)
	write(t, mem, "/f", strings.Repeat("x", 8192))
	require.NoError(t, mem.SyncDir("/"))
	f, err := mem.Open("/f", vfs.Write)
	require.NoError(t, err)
	require.NoError(t, f.PunchHole(4096, 4096))
	require.NoError(t, f.Truncate(100))
	look := func(after *vfs.Mem) string {
		got := read(t, after, "/f")
		if len(got) > 4096 {
			return fmt.Sprintf("%d %q %q", len(got), got[99:101], got[8191])
		}
		return fmt.Sprint(len(got))
	}
	seen := outcomes(mem, look)
	require.Contains(t, seen, "100")
	require.Contains(t, seen, `8192 "xx" 'x'`)
	require.Contains(t, seen, `8192 "x\x00" '\x00'`)
	require.NoError(t, f.Sync())
	require.Equal(t, []string{"100"}, keys(outcomes(mem, look)))
}

// TestCrashLeavesTheOriginalAlone checks that the clone and the original share no
// byte that either may still write.
func TestCrashLeavesTheOriginalAlone(t *testing.T) {
	mem := vfs.NewMem(1)
	write(t, mem, "/f", "durable.")
	require.NoError(t, mem.SyncDir("/"))
	f, err := mem.Open("/f", vfs.Write)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("unsynced"), 0)
	require.NoError(t, err)
	var clones []*vfs.Mem
	for seed := range uint64(20) {
		clones = append(clones, mem.Crash(rand.New(rand.NewPCG(seed, 2))))
	}
	_, err = f.WriteAt([]byte("later"), 0)
	require.NoError(t, err)
	for _, after := range clones {
		got := read(t, after, "/f")
		require.Contains(t, []string{"durable.", "unsynced"}, got)
		write(t, after, "/f", "clone")
	}
	require.Equal(t, "laterced", read(t, mem, "/f"))
}
