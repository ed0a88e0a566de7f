package integration_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// whereabouts is what scripts read of `moraine info`.
type whereabouts struct {
	Path    string
	Size    int64
	Stripes int64            `json:"stripe_bytes"`
	Objects int64            `json:"object_bytes"`
	Holes   int64            `json:"hole_bytes"`
	ByLevel map[string]int64 `json:"bytes_by_level"`
	Devices []struct {
		Device, Host string
		Alive        bool
		Chunks       int
	}
	Extents []struct {
		Offset, Length         int64
		Stripe, Scheme, Bucket string
		Object                 string
		Chunks                 []struct{ Device, Host, Level string }
	}
}

// `moraine info` shows where the bytes of a file are: in stripes on devices, in holes, and after an
// eviction in an object. It says the same for the path of the file on a mount.
func TestInfoShowsWhereTheBytesAre(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 6, ObjectServer: true})
	m := mountCluster(t, c)
	const hole, written = 8 << 20, 5 << 20
	name := filepath.Join(m.dir, "directory", "file")
	require.NoError(t, os.Mkdir(filepath.Dir(name), 0o755))
	f, err := os.Create(name)
	require.NoError(t, err)
	data := make([]byte, written)
	r := random(seed(t))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	_, err = f.WriteAt(data, hole)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	info := func(path string) (w whereabouts) {
		out, err := m.moraine("info", path, "--json")
		require.NoError(t, err, out)
		require.NoError(t, json.Unmarshal([]byte(out), &w), out)
		return w
	}
	got := info(name)
	require.Equal(t, "moraine:///directory/file", got.Path)
	require.Equal(t, got, info("moraine:///directory/file"))
	require.EqualValues(t, hole+written, got.Size)
	require.EqualValues(t, written, got.Stripes)
	require.EqualValues(t, hole, got.Holes)
	require.Zero(t, got.Objects)
	require.Equal(t, map[string]int64{"nvme": written}, got.ByLevel)
	chunks, held := map[string]int{}, map[string]bool{}
	var covered int64
	for _, e := range got.Extents {
		require.GreaterOrEqual(t, e.Offset, int64(hole))
		covered += e.Length
		require.NotEmpty(t, e.Scheme)
		for _, c := range e.Chunks {
			require.Equal(t, "nvme", c.Level)
			if !held[e.Stripe+" "+c.Device] {
				chunks[c.Device]++
			}
			held[e.Stripe+" "+c.Device] = true
		}
	}
	require.EqualValues(t, written, covered)
	require.NotEmpty(t, got.Devices)
	for _, d := range got.Devices {
		require.True(t, d.Alive)
		require.NotNil(t, c.Node(d.Host), "a host of the cluster")
		require.Equal(t, chunks[d.Device], d.Chunks)
		delete(chunks, d.Device)
	}
	require.Empty(t, chunks)

	for _, args := range [][]string{{"flush", "--wait", "moraine:///directory"}, {"evict", "--wait", "moraine:///directory"}} {
		out, err := m.moraine(args...)
		require.NoError(t, err, out)
	}
	got = info(name)
	require.Zero(t, got.Stripes)
	require.Empty(t, got.Devices)
	require.EqualValues(t, hole+written, got.Size)
	require.Equal(t, got.Size, got.Objects+got.Holes)
	require.GreaterOrEqual(t, got.Objects, int64(written))
	for _, e := range got.Extents {
		require.Equal(t, devcluster.LocalBucket, e.Bucket)
		require.NotEmpty(t, e.Object)
	}
	back, err := os.ReadFile(name)
	require.NoError(t, err)
	require.True(t, bytes.Equal(append(make([]byte, hole), data...), back))

	out, err := m.moraine("info", "--extents", name)
	require.NoError(t, err, out)
	require.Contains(t, out, "moraine:///directory/file")
	out, err = m.moraine("info", filepath.Dir(name))
	require.Error(t, err)
	require.Contains(t, out, "directory")
	out, err = m.moraine("info", t.TempDir())
	require.Error(t, err)
	require.Contains(t, out, "no mount of moraine")
	m.umount(t)
}
