package integration_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/slowdisk"
)

// heldCluster is a cluster of processes whose chunkservers' disks can be blocked.
type heldCluster struct {
	*devcluster.Cluster
	t     *testing.T
	env   []string
	dir   string
	disks []*slowdisk.Disk // of n1, n2 ...
}

func startHeld(t *testing.T) *heldCluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("disks of our own need root")
	}
	h := &heldCluster{t: t, dir: t.TempDir()}
	cluster := filepath.Join(h.dir, "cluster")
	for n := 1; n <= 6; n++ {
		name := fmt.Sprintf("n%d", n)
		d, err := slowdisk.Mount(filepath.Join(cluster, name), filepath.Join(h.dir, "disk-"+name))
		if err != nil {
			t.Skipf("nothing can be mounted here: %v", err)
		}
		h.disks = append(h.disks, d)
		t.Cleanup(func() { require.NoError(t, d.Unmount()) }) // after the cluster has ended
	}
	h.Cluster = startProcsIn(t, cluster, devcluster.Config{Chunkservers: 6, ChunkserverArgs: []string{"--capacity", "64MiB"}})
	t.Cleanup(h.release) // before it ends
	h.env = settingsFor(h.Cluster)
	works(t, h.env, "cluster", "status", "--wait", "1m")
	return h
}

func (h *heldCluster) release() {
	for _, d := range h.disks {
		d.Release()
	}
}

// local makes a file to copy in, and returns its name and contents.
func (h *heldCluster) local(seed byte) (path string, content []byte) {
	h.t.Helper()
	content = make([]byte, 1<<20+int(seed))
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(content)
	path = filepath.Join(h.t.TempDir(), "in")
	require.NoError(h.t, os.WriteFile(path, content, 0o644))
	return path, content
}

// save copies a file in, and returns its contents.
func (h *heldCluster) save(name string, seed byte) []byte {
	h.t.Helper()
	path, content := h.local(seed)
	works(h.t, h.env, "cp", "--json", path, "moraine:///"+name)
	return content
}

// saveHeld copies a file in at level memory while no device accepts writes: when it
// returns each chunk is only in the memory of its chunkserver.
func (h *heldCluster) saveHeld(name string, seed byte) []byte {
	h.t.Helper()
	path, content := h.local(seed)
	for {
		for _, d := range h.disks {
			d.Hold("segments")
		}
		var out, said bytes.Buffer
		cp := command(h.t, h.env, "cp", "--ack", "memory", "--json", path, "moraine:///"+name)
		cp.Stdout, cp.Stderr = &out, &said
		require.NoError(h.t, cp.Start())
		ended := make(chan error, 1)
		go func() { ended <- cp.Wait() }()
		select {
		case err := <-ended:
			require.NoError(h.t, err, "%s", &said)
			require.Equal(h.t, "memory", objects(h.t, out.String())[0]["level"])
			for n, d := range h.disks {
				require.Eventually(h.t, func() bool { return d.Held() > 0 }, 10*time.Second, 5*time.Millisecond, "n%d has nothing to write", n+1)
			}
			return content
		case <-time.After(5 * time.Second):
			// A chunkserver that does not know yet that level memory is enabled
			// answers at nvme, or a device wrote something else. Then the disks are
			// needed.
			h.release()
			require.NoError(h.t, <-ended, "%s", &said)
		}
	}
}

// settles waits until a file is at nvme, or lost, and returns which.
func (h *heldCluster) settles(name string) string {
	h.t.Helper()
	level := ""
	require.Eventually(h.t, func() bool {
		level, _ = objects(h.t, works(h.t, h.env, "stat", "--json", "moraine:///"+name))[0]["level"].(string)
		return level == "nvme" || level == "lost"
	}, 2*time.Minute, 200*time.Millisecond, name)
	return level
}

func (h *heldCluster) requireWhole(name string, want []byte) {
	h.t.Helper()
	require.Equal(h.t, string(want), works(h.t, h.env, "cat", "moraine:///"+name), "other bytes in %s", name)
}

func (h *heldCluster) start(nodes []*devcluster.Node) {
	h.t.Helper()
	for _, n := range nodes {
		require.NoError(h.t, n.Start())
	}
	for _, n := range nodes {
		require.NoError(h.t, n.Ready(h.t.Context()))
	}
}

// kill kills chunkservers while their disks are blocked. Bytes that were being
// written are lost.
func (h *heldCluster) kill(count int) []*devcluster.Node {
	h.t.Helper()
	nodes := h.Nodes(devcluster.Chunkserver)[:count]
	for _, n := range nodes {
		require.NoError(h.t, n.Signal(syscall.SIGKILL))
	}
	for _, d := range h.disks[:count] {
		d.Lose()
	}
	for _, n := range nodes {
		require.NoError(h.t, n.Kill()) // it is gone
	}
	h.release()
	return nodes
}

// TestWhatWasInMemoryAloneOverProcesses saves files at level memory while no disk
// accepts writes. After SIGKILL of m chunkservers the file is repaired; after
// SIGTERM of all of them it is written first. After SIGKILL of m+1 it is lost: it
// is reported by name and range, and neither the command nor a mount serves a byte
// of the lost ranges. Durable files beside it are whole, and so is the file once it
// is written again.
func TestWhatWasInMemoryAloneOverProcesses(t *testing.T) {
	t.Parallel()
	h := startHeld(t)
	m := mountCluster(t, h.Cluster)
	neighbour := h.save("neighbour", 1)

	healed := h.saveHeld("healed", 2)
	h.start(h.kill(2))
	require.Equal(t, "nvme", h.settles("healed"))
	h.requireWhole("healed", healed)

	ended := h.saveHeld("ended", 3)
	nodes := h.Nodes(devcluster.Chunkserver)
	for _, n := range nodes {
		require.NoError(t, n.Signal(syscall.SIGTERM))
	}
	time.Sleep(500 * time.Millisecond) // catches a return that does not wait for the disk
	for _, n := range nodes {
		require.True(t, n.Running(), "%s ended before it had written what is dirty", n.Name)
	}
	h.release()
	for _, n := range nodes {
		require.NoError(t, n.Stop(time.Minute))
	}
	h.start(nodes)
	require.Equal(t, "nvme", h.settles("ended"))
	h.requireWhole("ended", ended)

	lost := h.saveHeld("lost", 4)
	h.start(h.kill(3))
	require.Equal(t, "lost", h.settles("lost"))
	list := works(t, h.env, "cluster", "lost", "--json")
	require.Contains(t, list, `"/lost"`)
	require.Contains(t, strings.Join(strings.Fields(list), ""), fmt.Sprintf(`[{"offset":0,"bytes":%d}]`, len(lost)))
	for _, name := range []string{"neighbour", "healed", "ended"} {
		require.NotContains(t, list, name)
	}
	out := invoke(t, h.env, "cat", "moraine:///lost")
	require.Equal(t, 1, out.code)
	require.Contains(t, out.stderr, "lost")
	require.Empty(t, out.stdout)
	_, err := os.ReadFile(filepath.Join(m.dir, "lost"))
	require.ErrorIs(t, err, syscall.EIO)
	h.requireWhole("neighbour", neighbour)
	h.requireWhole("healed", healed)
	h.requireWhole("ended", ended)

	again := h.save("lost", 5)
	h.requireWhole("lost", again)
	require.NotContains(t, works(t, h.env, "cluster", "lost", "--json"), "/lost")
	m.umount(t)
}
