package integration_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/testseed"
)

// TestAPreemptedNodeLeavesItsStep: a node gets SIGTERM with 30 s of grace while its agent has parts
// that no device has yet. Its exit code says that it wrote all of them within the grace: the step is at level nvme, and a trainer of
// another node resumes from it.
func TestAPreemptedNodeLeavesItsStep(t *testing.T) {
	const grace = 30 * time.Second
	dirty := testseed.Of(int64(64<<20), int64(2<<30))
	if !testseed.Long() {
		t.Parallel()
	}
	c := startProcs(t, devcluster.Config{Metadata: 1, ChunkserverArgs: []string{"--memory", testseed.Of(chunkMemory, "256MiB")}})
	a := newAgentProc(t, c)
	a.memory, a.grace = fmt.Sprintf("%dMiB", dirty>>20+dirty>>23+64), grace.String()
	a.start()
	file := filepath.Join(t.TempDir(), "state")
	want := writeRandom(t, file, dirty)

	out, code := a.run("ckpt", "save", "moraine:///runs/a", "--step", "1", "--agent", a.socket(), "--level", "local", file)
	require.Equal(t, 0, code, out)
	began := time.Now()
	require.Equal(t, 0, a.end(syscall.SIGTERM), "0 only if everything was written within the grace")
	took := time.Since(began)
	t.Logf("%d MiB were at level nvme %v after SIGTERM", dirty>>20, took.Round(time.Millisecond))
	out, code = a.run("ckpt", "wait", "moraine:///runs/a", "--step", "1", "--level", "nvme", "--timeout", "1s")
	require.Equal(t, 0, code, out)

	next := newAgentProc(t, c)
	next.memory, next.grace = a.memory, a.grace
	next.start()
	dir := t.TempDir()
	out, code = next.run("ckpt", "restore", "moraine:///runs/a", dir)
	require.Equal(t, 0, code, out)
	require.Equal(t, want, sumOf(t, filepath.Join(dir, "state")))
	file = filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(file, []byte("step 2"), 0o600))
	out, code = next.runAs("two", "ckpt", "save", "moraine:///runs/a", "--step", "2", "--agent", next.socket(), "--level", "nvme", file)
	require.Equal(t, 0, code, "the next launch is not busy: %s", out)
}

// writeRandom makes a file of random bytes, and returns its sum.
func writeRandom(t *testing.T, path string, bytes int64) string {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{7}), bytes)
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}
