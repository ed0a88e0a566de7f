package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// randomFile makes a local file of n bytes that do not compress.
func randomFile(t *testing.T, rng *rand.Rand, n int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, n)
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	path = filepath.Join(t.TempDir(), "content")
	require.NoError(t, os.WriteFile(path, content, 0o644))
	return path, content
}

// TestCorruptSegment flips bits all over the segments of a device. The device
// restarts and serves no damaged byte, reads rebuild the chunks, and the chunks are
// repaired.
func TestCorruptSegment(t *testing.T) {
	t.Parallel()
	s := seed(t)
	rng := random(s)
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 4, MetadataArgs: []string{"--grace", "1s"}})
	env := settingsFor(c)
	local, content := randomFile(t, rng, 24<<20)
	works(t, env, "cp", "--scheme", "2+1", local, "moraine:///file")

	n1 := c.Node("n1")
	require.NoError(t, n1.Stop(10*time.Second))
	segments, err := filepath.Glob(filepath.Join(n1.Dir, "device0", "segments", "*"))
	require.NoError(t, err)
	flipped := 0
	for _, name := range segments {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		for at := 64 << 10; at < len(data); at += 64 << 10 { // in the contents of chunks, not in the head of the file
			data[at+rng.IntN(4<<10)-4<<10] ^= 1 << rng.IntN(8)
			flipped++
		}
		require.NoError(t, os.WriteFile(name, data, 0o644))
	}
	require.NotZero(t, flipped)
	require.NoError(t, n1.Start())
	require.NoError(t, n1.Ready(t.Context()))

	out := filepath.Join(t.TempDir(), "out")
	works(t, env, "cp", "moraine:///file", out)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))

	// Reported chunks are rebuilt elsewhere: a reader then has nothing left to
	// rebuild.
	cl := connect(t, c, client.Config{})
	require.Eventually(t, func() bool {
		before := cl.Stats().StripesRebuilt
		r, err := cl.OpenFile(t.Context(), "/file")
		require.NoError(t, err)
		defer r.Close()
		p := make([]byte, len(content))
		require.NoError(t, r.ReadRange(t.Context(), p, 0))
		require.True(t, bytes.Equal(content, p))
		return cl.Stats().StripesRebuilt == before
	}, 2*time.Minute, 500*time.Millisecond)
	works(t, env, "cluster", "status", "--wait", "60s")
}

// smallDisk mounts a new file system of n bytes at dir, until the test ends.
func smallDisk(t *testing.T, dir string, n int64) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small file system: run `sudo make test`, or trust a run elsewhere")
	}
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, n))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", image).CombinedOutput(); err != nil {
		t.Skipf("no small file system can be made: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("no small file system can be mounted: %v: %s", err, out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("umount", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
}

// TestFullDevice fills the file system of the only device. Writes end with one line
// before it is full, acknowledged data is there, files can be removed, and their
// space returns to the file system.
func TestFullDevice(t *testing.T) {
	t.Parallel()
	testseed.OnlyLong(t) // it waits for the patience of a write to end
	dir := filepath.Join(t.TempDir(), "cluster")
	smallDisk(t, filepath.Join(dir, "n1"), 256<<20)
	c := startProcsIn(t, dir, devcluster.Config{Metadata: 1, Chunkservers: 1, MetadataArgs: []string{"--grace", "1s"}})
	env := settingsFor(c)
	local, content := randomFile(t, random(seed(t)), 32<<20)
	kept := 0
	for ; ; kept++ {
		require.Less(t, kept, 64, "more than the disk holds")
		o := invoke(t, env, "cp", local, fmt.Sprintf("moraine:///file%d", kept))
		if o.code != 0 {
			requireRefused(t, o, 1, fmt.Sprintf("/file%d", kept), "no space")
			break
		}
	}
	require.NotZero(t, kept)
	device := objects(t, works(t, env, "device", "ls", "--json"))[0]
	capacity, used := device["capacity_bytes"].(float64), device["used_bytes"].(float64)
	require.Less(t, used, capacity, "it takes nothing more before it is full")
	full := freeBytes(t, filepath.Join(dir, "n1"))
	out := filepath.Join(t.TempDir(), "out")
	for i := range kept {
		works(t, env, "cp", fmt.Sprintf("moraine:///file%d", i), out)
		got, err := os.ReadFile(out)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got), i)
	}
	for i := range kept {
		works(t, env, "rm", fmt.Sprintf("moraine:///file%d", i))
	}
	// The space of removed files returns to the file system, hole by hole, after
	// the grace. df shows it, except for the ballast that the device takes again,
	// and so does the cluster.
	removed := uint64(kept) * uint64(len(content))
	const ballast = 64 << 20
	free := uint64(0)
	given := func() bool {
		free = freeBytes(t, filepath.Join(dir, "n1"))
		return free+ballast >= full+removed*9/10
	}
	for end := time.Now().Add(time.Minute); !given(); time.Sleep(200 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d bytes free when full, %d removed, %d free now", full, removed, free)
	}
	require.Eventually(t, func() bool {
		return objects(t, works(t, env, "device", "ls", "--json"))[0]["used_bytes"].(float64) <= used-float64(removed)*9/10+ballast
	}, time.Minute, 200*time.Millisecond)
	require.Eventually(t, func() bool {
		return invoke(t, env, "cp", local, "moraine:///again").code == 0
	}, 2*time.Minute, time.Second)
	require.True(t, c.Node("n1").Running())
}

// freeBytes is the free space that df shows for the file system of dir.
func freeBytes(t *testing.T, dir string) uint64 {
	t.Helper()
	usage, err := vfs.OS{}.Usage(dir)
	require.NoError(t, err)
	return usage.Free
}

// TestFullMetadataDisk fills the file system of the metadata server. It refuses
// requests that would grow the namespace, but not those that shrink it. With free
// space, all requests work again.
func TestFullMetadataDisk(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cluster")
	smallDisk(t, filepath.Join(dir, "m1"), 512<<20)
	c := startProcsIn(t, dir, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	works(t, env, "mkdir", "moraine:///a", "moraine:///b")
	filler := filepath.Join(dir, "m1", "filler")
	f, err := os.Create(filler)
	require.NoError(t, err)
	defer f.Close()
	zeros := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(zeros)
	}
	require.NoError(t, f.Close())

	var refused outcome
	require.Eventually(t, func() bool {
		refused = invoke(t, env, "mkdir", fmt.Sprintf("moraine:///new%d", time.Now().UnixNano()))
		return refused.code != 0
	}, time.Minute, 100*time.Millisecond)
	requireRefused(t, refused, 1, "no space", "metadata")
	works(t, env, "rm", "-r", "moraine:///a")
	works(t, env, "ls", "moraine:///b")

	require.NoError(t, os.Remove(filler))
	require.Eventually(t, func() bool { return invoke(t, env, "mkdir", "moraine:///again").code == 0 }, time.Minute, 100*time.Millisecond)
	require.NotContains(t, works(t, env, "ls", "moraine:///"), "a/\nb/")
}

// TestAllMetadataDisksFull fills the file systems of all metadata servers past
// their ballast, and kills all servers. They restart, refuse growth, carry out
// removals, and report whose disks are full. With free space they work as before.
// Without a free byte and without a ballast they end, and say what to do.
func TestAllMetadataDisksFull(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cluster")
	for _, m := range []string{"m1", "m2", "m3"} {
		smallDisk(t, filepath.Join(dir, m), 768<<20)
	}
	c := startProcsIn(t, dir, devcluster.Config{Chunkservers: 1})
	env := settingsFor(c)
	works(t, env, "mkdir", "moraine:///a", "moraine:///b")
	for _, m := range c.Nodes(devcluster.Metadata) {
		leaveFree(t, filepath.Join(m.Dir, "filler"), 32<<20)
	}
	refusedAll := func() bool {
		return invoke(t, env, "mkdir", fmt.Sprintf("moraine:///new%d", time.Now().UnixNano())).code != 0
	}
	require.Eventually(t, refusedAll, time.Minute, 100*time.Millisecond)
	for _, m := range c.Nodes(devcluster.Metadata) {
		require.Eventually(t, func() bool { // its ballast is removed
			_, err := os.Stat(filepath.Join(m.Dir, "data", "BALLAST"))
			return errors.Is(err, fs.ErrNotExist)
		}, time.Minute, 100*time.Millisecond)
	}
	for _, m := range c.Nodes(devcluster.Metadata) {
		require.NoError(t, m.Kill())
	}
	for _, m := range c.Nodes(devcluster.Metadata) {
		require.NoError(t, m.Start())
	}
	works(t, env, "rm", "-r", "moraine:///a")
	requireRefused(t, invoke(t, env, "mkdir", "moraine:///c"), 1, "no space", "metadata")
	require.Eventually(t, func() bool { // each reports itself every second
		status := invoke(t, env, "cluster", "status")
		for _, m := range c.Nodes(devcluster.Metadata) {
			if !strings.Contains(status.stdout+status.stderr, "metadata server "+m.Name+" is nearly full") {
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond)
	for _, m := range c.Nodes(devcluster.Metadata) {
		require.NoError(t, os.Remove(filepath.Join(m.Dir, "filler")))
	}
	require.Eventually(t, func() bool { return !refusedAll() }, time.Minute, 100*time.Millisecond)

	// No free byte, and no ballast: a starting server ends, and says what to do.
	// After that it starts.
	for _, m := range c.Nodes(devcluster.Metadata) {
		require.NoError(t, m.Kill())
		if err := os.Remove(filepath.Join(m.Dir, "data", "BALLAST")); err != nil {
			require.ErrorIs(t, err, fs.ErrNotExist)
		}
		fillUp(t, filepath.Join(m.Dir, "more"), 0)
	}
	for _, m := range c.Nodes(devcluster.Metadata) {
		require.NoError(t, m.Start())
		select {
		case <-m.Exited():
		case <-time.After(time.Minute):
			t.Fatalf("%s runs on a full disk", m.Name)
		}
		require.Contains(t, m.LogTail(20), "is full")
		require.Contains(t, m.LogTail(20), "make room there")
	}
	for _, m := range c.Nodes(devcluster.Metadata)[:2] {
		require.NoError(t, os.Remove(filepath.Join(m.Dir, "more")))
		require.NoError(t, m.Start())
	}
	works(t, env, "rm", "-r", "moraine:///b")
	works(t, env, "mkdir", "moraine:///c")
}

// leaveFree makes a file that leaves the given bytes of its file system free.
func leaveFree(t *testing.T, name string, free int64) {
	t.Helper()
	usage, err := vfs.OS{}.Usage(filepath.Dir(name))
	require.NoError(t, err)
	f, err := os.Create(name)
	require.NoError(t, err)
	require.NoError(t, unix.Fallocate(int(f.Fd()), 0, 0, int64(usage.Free)-free))
	require.NoError(t, f.Close())
}
