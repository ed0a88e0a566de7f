package disk_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// random is a source of UUIDs and salts that depends only on the seed.
func random(seed uint64) *rand.ChaCha8 { return rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}) }

// config is that of a device in dir with small segments. Space is reclaimed only
// when a test requests it.
func config(dir string) disk.Config {
	return disk.Config{Dir: dir, Cluster: tiertest.Cluster, SegmentBytes: 1 << 20, BallastBytes: -1,
		IndexCacheBytes: 1 << 20, ReclaimInterval: time.Hour}
}

func format(t testing.TB, fsys vfs.FS, dir string) {
	t.Helper()
	_, err := disk.Format(fsys, dir, tiertest.Cluster, random(1))
	require.NoError(t, err)
}

func open(t testing.TB, fsys vfs.FS, cfg disk.Config) *disk.Device {
	t.Helper()
	d, err := disk.Open(cfg, disk.Deps{FS: fsys})
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func conformance(fsys func(t *testing.T) (vfs.FS, string)) func(t *testing.T) tiertest.Opened {
	return func(t *testing.T) tiertest.Opened {
		f, dir := fsys(t)
		format(t, f, dir)
		d := open(t, f, config(dir))
		return tiertest.Opened{Tier: d, Reopen: func(t *testing.T) tiers.Tier {
			require.NoError(t, d.Close())
			d = open(t, f, config(dir))
			require.Zero(t, d.Recovered().Records, "a clean close leaves nothing to scan")
			return d
		}}
	}
}

func TestConformanceInMemory(t *testing.T) {
	tiertest.Run(t, conformance(func(*testing.T) (vfs.FS, string) { return vfs.NewMem(1), "/device" }))
}

func TestConformanceOnDisk(t *testing.T) {
	tiertest.Run(t, conformance(func(t *testing.T) (vfs.FS, string) { return vfs.OS{}, t.TempDir() + "/device" }))
}
