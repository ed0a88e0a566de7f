package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// saveStepHeld saves a step at level memory while no device accepts writes: when it returns, the step
// is committed and only in the memory of chunkservers.
func (h *heldCluster) saveStepHeld(step string, seed byte) {
	h.t.Helper()
	path, _ := h.local(seed)
	for _, d := range h.disks {
		d.Hold("segments")
	}
	works(h.t, append(h.env, "MORAINE_LAUNCH=one"), "ckpt", "save", "moraine:///run", "--step", step, "--level", "memory", path)
	info := objects(h.t, works(h.t, h.env, "ckpt", "show", "moraine:///run", "--step", step, "--json"))[0]
	require.Equal(h.t, "memory", info["level"], "%v", info)
}

// TestAStepLostInMemory: a step is at level memory only when more than m hosts are killed. It is lost,
// by name, and every link and a restore go to the newest whole step.
func TestAStepLostInMemory(t *testing.T) {
	t.Parallel()
	h := startHeld(t)
	path, whole := h.local(1)
	works(t, append(h.env, "MORAINE_LAUNCH=one"), "ckpt", "save", "moraine:///run", "--step", "1", "--level", "nvme", path)
	// Level memory is enabled when the first file is at it.
	h.saveHeld("first", 2)
	h.release()
	require.Equal(t, "nvme", h.settles("first"))

	h.saveStepHeld("2", 3)
	h.start(h.kill(3))
	require.Eventually(t, func() bool {
		return strings.Contains(works(t, h.env, "ckpt", "ls", "moraine:///run"), "lost")
	}, time.Minute, 200*time.Millisecond)
	require.Contains(t, works(t, h.env, "cluster", "lost", "--json"), "/run/attempt-1/step-2/")
	index := func(dir string) any {
		return objects(t, works(t, h.env, "stat", "--json", "moraine:///run/"+dir+"/index.moraine"))[0]["inode"]
	}
	for _, link := range []string{"latest", "latest-memory", "latest-nvme"} {
		require.Equal(t, index("attempt-1/step-1"), index(link), link)
	}
	dir := t.TempDir()
	out := invoke(t, h.env, "ckpt", "restore", "moraine:///run", dir)
	require.Zero(t, out.code, out.stderr)
	require.Contains(t, out.stdout+out.stderr, "step 2", "the restore names the newer step that is lost")
	got, err := os.ReadFile(filepath.Join(dir, filepath.Base(path)))
	require.NoError(t, err)
	require.Equal(t, string(whole), string(got))
	out = invoke(t, h.env, "ckpt", "restore", "moraine:///run", "--step", "2", t.TempDir())
	require.Equal(t, 1, out.code)
	require.Contains(t, out.stderr, "lost")
}
