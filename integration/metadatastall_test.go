package integration_test

import (
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/slowdisk"
)

// slowDisks gives each metadata server of a cluster in dir a disk that can hang.
func slowDisks(t *testing.T, dir string, names ...string) map[string]*slowdisk.Disk {
	t.Helper()
	disks := map[string]*slowdisk.Disk{}
	for _, name := range names {
		d, err := slowdisk.Mount(filepath.Join(dir, name), filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Skipf("needs root and FUSE, for disks that hang: %v", err)
		}
		t.Cleanup(func() {
			if err := d.Unmount(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		disks[name] = d
	}
	return disks
}

// TestMetadataDiskThatHangs makes the leader's disk hang while files are made. The
// leader, whose followers still receive its heartbeats, steps down by itself, and
// another leads while the disk still hangs. Operations acknowledged before and
// since are there, once each. When the disk answers again the server is restarted
// and takes part: without it the last of the others has no majority.
func TestMetadataDiskThatHangs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cluster")
	disks := slowDisks(t, dir, "m1", "m2", "m3")
	c := startProcsIn(t, dir, devcluster.Config{Chunkservers: -1})
	t.Cleanup(func() { // before the processes end: one whose disk hangs does not
		for _, d := range disks {
			d.Answer()
		}
	})
	cl := connect(t, c, client.Config{})
	attr, err := cl.Mkdir(t.Context(), "/d", 0o755)
	require.NoError(t, err)
	var made atomic.Int64
	var failed error
	stop := make(chan struct{})
	var g sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); g.Wait() })
	defer end()
	g.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if failed = createAndRename(t.Context(), cl, attr.Inode(), int(made.Load())); failed != nil {
				return
			}
			made.Add(1)
		}
	})
	waitFor(t, &made, 20)
	awaitSeats(t, c) // each server may lead

	ill := leaderOf(t, cl)
	victim, disk := c.Node(ill), disks[ill]
	disk.Hang()
	began := time.Now()
	deadline := began.Add(time.Minute)
	for !strings.Contains(victim.Log(), "the disk of the log hangs") {
		require.True(t, time.Now().Before(deadline), "%s goes on with a disk that hangs:\n%s", ill, victim.LogTail(5))
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%s gave up its place after %v, at --log-stall 15s; %d calls wait in its disk", ill, time.Since(began).Round(time.Millisecond), disk.Waited())
	require.Positive(t, disk.Waited())
	for leaderOf(t, cl) == ill {
		require.True(t, time.Now().Before(deadline), "%s still leads", ill)
		time.Sleep(20 * time.Millisecond)
	}
	waitFor(t, &made, made.Load()+20)
	t.Logf("files are made again %v after the disk began to hang", time.Since(began).Round(time.Millisecond))

	disk.Answer()
	select {
	case <-victim.Exited(): // by itself; a process that waits for a disk could not end
	case <-time.After(time.Minute):
		t.Fatalf("%s did not end", ill)
	}
	require.NoError(t, victim.Start())
	require.NoError(t, victim.Ready(t.Context()))
	waitFor(t, &made, made.Load()+20)
	require.NoError(t, c.Node(leaderOf(t, cl)).Kill())
	waitFor(t, &made, made.Load()+20)
	end()
	require.NoError(t, failed)
	checkNames(t, cl, "/d", int(made.Load()))
}
