package fuse_test

import (
	"path/filepath"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
)

// TestMountOf: a path belongs to the nearest mount above it, and no path of another file system does.
func TestMountOf(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	for _, path := range []string{m.dir, m.at("below"), m.at("below/deep")} {
		got, err := fuse.MountOf(path)
		require.NoError(t, err)
		require.Equal(t, m.dir, got.Dir)
		require.NotEmpty(t, got.Source)
	}
	for _, path := range []string{"/", filepath.Dir(m.dir), m.dir + "2"} {
		_, err := fuse.MountOf(path)
		require.ErrorIs(t, err, moraine.NotFound, path)
	}
	for line, want := range map[string]fuse.Mounted{
		`36 35 0:98 / /mnt/a\040b rw,nosuid - fuse.moraine moraine://h1,h2/x\040y rw,user_id=1000,group_id=5`: {Dir: "/mnt/a b", Source: "moraine://h1,h2/x y", User: 1000},
		`36 35 0:98 / /mnt rw shared:1 - fuse.moraine m ro,allow_other,user_id=0`:                             {Dir: "/mnt", Source: "m"},
	} {
		got, ok := fuse.ParseMount(line)
		require.True(t, ok)
		require.Equal(t, want, fuse.Mounted{Dir: got.Dir, Source: got.Source, User: got.User})
	}
	for _, line := range []string{"", "36 35 0:98 / /mnt rw - ext4 /dev/vda rw", "36 35 0:98 / /mnt rw - fuse.other m rw", "- fuse.moraine "} {
		_, ok := fuse.ParseMount(line)
		require.False(t, ok, line)
	}
}
