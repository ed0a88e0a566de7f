package integration_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// statsLine is what scripts read of `moraine stats` and `moraine profile`.
type statsLine struct {
	Dir         string
	Interval    float64 `json:"interval_s"`
	Operations  float64 `json:"operations_per_s"`
	Read        float64 `json:"read_bytes_per_s"`
	Written     float64 `json:"written_bytes_per_s"`
	P50         float64 `json:"p50_ms"`
	P99         float64 `json:"p99_ms"`
	OpenFiles   int     `json:"open_files"`
	MemoryBytes uint64  `json:"memory_bytes"`
	CacheHits   uint64  `json:"cache_hits"`
	Profile     string
	By          []struct {
		Operation string
		Count     uint64
		Bytes     uint64
	} `json:"by_operation"`
}

// The live counts, the profile and the access log show what programs do on a mount. Commands find the
// process of the mount by any path on it.
func TestStatsProfileAndAccessLogOfAMount(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	access := filepath.Join(t.TempDir(), "access.log")
	m := mountCluster(t, c, "--access-log", access)
	require.NoError(t, os.Mkdir(filepath.Join(m.dir, "below"), 0o755))
	held, err := os.Create(filepath.Join(m.dir, "held"))
	require.NoError(t, err)

	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			name := filepath.Join(m.dir, "below", "file")
			err := os.WriteFile(name, []byte("content"), 0o644)
			if err == nil {
				_, err = os.ReadFile(name)
			}
			if err != nil {
				stopped <- err
				return
			}
		}
	}()
	line := func(args ...string) (s statsLine) {
		out, err := m.moraine(append(args, "--json")...)
		require.NoError(t, err, out)
		require.NoError(t, json.Unmarshal([]byte(out), &s), out)
		return s
	}
	require.Eventually(t, func() bool { // the interval may lie in a stall of the disk
		s := line("stats", filepath.Join(m.dir, "below"), "--count", "1", "--interval", "300ms")
		require.Equal(t, m.dir, s.Dir)
		require.Positive(t, s.Interval)
		require.GreaterOrEqual(t, s.OpenFiles, 1)
		require.Positive(t, s.MemoryBytes)
		return s.Operations > 0 && s.Read > 0 && s.Written > 0 && s.P50 > 0 && s.P99 >= s.P50 && s.CacheHits > 0
	}, 2*time.Minute, time.Millisecond)

	file := filepath.Join(t.TempDir(), "mount.pprof")
	require.Eventually(t, func() bool {
		s := line("profile", m.dir, "--for", "300ms", "--out", file)
		require.Equal(t, file, s.Profile)
		found := map[string]uint64{}
		for _, o := range s.By {
			found[o.Operation] = o.Count
		}
		return found["write"] > 0 && found["read"] > 0 && found["open"] > 0 && found["flush"] > 0
	}, 2*time.Minute, time.Millisecond)
	profile, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "\x1f\x8b", string(profile[:2]), "a profile is compressed by gzip")
	out, err := m.moraine("stats", m.dir, "--count", "2", "--interval", "100ms")
	require.NoError(t, err, out)
	require.Contains(t, out, "OPS/S")
	require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 3)
	close(stop)
	require.NoError(t, <-stopped)
	require.NoError(t, held.Close())

	lines := func(file, part string) (n int) {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			return 0
		}
		require.NoError(t, err)
		return strings.Count(string(text), part)
	}
	require.Eventually(t, func() bool { return lines(access, ` mkdir 1 "below" 0 ok `) == 1 && lines(access, " write ") > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, os.Rename(access, access+".1"))
	require.NoError(t, unix.PidfdSendSignal(m.fd, unix.SIGHUP, nil, 0))
	require.Eventually(t, func() bool { _, err := os.Stat(access); return err == nil }, time.Minute, time.Millisecond)
	require.NoError(t, os.Mkdir(filepath.Join(m.dir, "later"), 0o755))
	require.Eventually(t, func() bool { return lines(access, ` mkdir 1 "later" 0 ok `) == 1 }, time.Minute, time.Millisecond)
	m.umount(t)

	out, err = m.moraine("stats", m.dir)
	require.Error(t, err)
	require.Contains(t, out, "no mount of moraine is there")
}
