package smart

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/transport/wire"
)

// TestDisksBelowADirectory finds the disks of a sysfs that looks like the kernel's:
// a partition, an encrypted volume on an array of two, and one with nothing below.
func TestDisksBelowADirectory(t *testing.T) {
	dir := t.TempDir()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir, &st))
	sys := t.TempDir()
	make := func(parts ...string) string {
		t.Helper()
		p := filepath.Join(append([]string{sys, "devices"}, parts...)...)
		require.NoError(t, os.MkdirAll(p, 0o755))
		return p
	}
	link := func(to string, parts ...string) {
		t.Helper()
		p := filepath.Join(parts...)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.Symlink(to, p))
	}
	partition := make("nvme0n1", "nvme0n1p3")
	require.NoError(t, os.WriteFile(filepath.Join(partition, "partition"), []byte("3"), 0o644))
	other, array, volume, virtual := make("nvme1n1"), make("md0"), make("dm-0"), make("vda")
	link(partition, array, "slaves", "nvme0n1p3")
	link(other, array, "slaves", "nvme1n1")
	link(array, volume, "slaves", "md0")
	at := filepath.Join(sys, "dev", "block", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	require.Empty(t, blockDevices(sys, dir), "a file system of no block device")
	for from, want := range map[string][]string{partition: {"nvme0n1"}, volume: {"nvme0n1", "nvme1n1"}, virtual: {"vda"}} {
		link(from, at)
		require.Equal(t, want, blockDevices(sys, dir), from)
		require.NoError(t, os.Remove(at))
	}
	require.Empty(t, blockDevices(sys, filepath.Join(dir, "nope")))
}

// TestHealthOfSeveralDisks: each figure is the worst.
func TestHealthOfSeveralDisks(t *testing.T) {
	require.Nil(t, worst(nil))
	h := worst([]*wire.DiskHealth{
		{Model: "a", WornPercent: 3, SparePercent: 90, Celsius: 50, MediaErrors: 1, PowerOnHours: 9},
		{Model: "b", WornPercent: 7, SparePercent: 100, Celsius: 30, MediaErrors: 2, PowerOnHours: 5, Failing: true, Text: "it has become read-only"},
	})
	require.Equal(t, "a, b", h.Model)
	require.EqualValues(t, 7, h.WornPercent)
	require.EqualValues(t, 90, h.SparePercent)
	require.EqualValues(t, 50, h.Celsius)
	require.EqualValues(t, 3, h.MediaErrors)
	require.EqualValues(t, 9, h.PowerOnHours)
	require.True(t, h.Failing)
	require.Equal(t, "it has become read-only", h.Text)
}
