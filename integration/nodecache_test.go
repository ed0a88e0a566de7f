package integration_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// What one mount has read, another mount of the node reads while no chunkserver runs, also after
// the first one has ended.
func TestMountsOfANodeShareTheirCache(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 3})
	cache := filepath.Join(t.TempDir(), "cache")
	first := mountCluster(t, c, "--cache-dir", cache, "--cache-size", "1GiB")
	want := map[string][sha256.Size]byte{}
	r := random(seed(t))
	for _, size := range []int{0, 1, 4095, 4096, 70_000, 5<<20 + 77} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		name := fmt.Sprintf("f%d.bin", size)
		require.NoError(t, os.WriteFile(filepath.Join(first.dir, name), data, 0o644))
		want[name] = sha256.Sum256(data)
	}
	read := func(m *mountProc) {
		t.Helper()
		for name, sum := range want {
			got, err := os.ReadFile(filepath.Join(m.dir, name))
			require.NoError(t, err)
			require.Equal(t, sum, sha256.Sum256(got), name)
		}
	}
	read(first)
	waitForCacheFiles(t, cache, 6) // of five files, of which one is longer than 4 MiB
	first.umount(t)
	for _, n := range c.Nodes(devcluster.Chunkserver) {
		require.NoError(t, n.Kill())
	}
	read(mountCluster(t, c, "--cache-dir", cache, "--cache-size", "1GiB", "--patience", "20s"))
}

// waitForCacheFiles waits until the cache has n files: they are written some time after the read.
func waitForCacheFiles(t *testing.T, cache string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(cache, "??", "*"))
		return err == nil && len(files) >= n
	}, 2*time.Minute, 50*time.Millisecond)
}

func TestACacheThatOthersCanReadIsRefused(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 1})
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	bin, err := binary()
	require.NoError(t, err)
	m := &mountProc{dir: t.TempDir(), bin: bin, env: append(os.Environ(), "MORAINE_ENDPOINT="+c.Endpoint(),
		"MORAINE_CERTS="+c.Certs(), "MORAINE_IDENTITY=admin", "MORAINE_MODE="+c.Mode())}
	for want, args := range map[string][]string{
		"chmod 700":               {"--cache-dir", dir},
		"without --cache-dir":     {"--cache-size", "1GiB"},
		"too few":                 {"--cache-dir", filepath.Join(dir, "new"), "--cache-size", "1MiB"},
		"name an empty directory": {"--cache-dir", otherFiles(t)},
		"is not a directory":      {"--cache-dir", m.bin},
		"write a number of bytes": {"--cache-dir", dir, "--cache-size", "much"},
	} {
		out, err := m.moraine(append([]string{"mount", "moraine:///", m.dir}, args...)...)
		require.Error(t, err, out)
		require.Contains(t, out, want)
	}
}

// otherFiles returns a directory, of this user alone, with a file in it.
func otherFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o600))
	return dir
}
