package raftstore_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/stretchr/testify/require"
)

func TestBootstrapRefusesADirectoryOfSomethingElse(t *testing.T) {
	mem := vfs.NewMem(1)
	require.NoError(t, mem.MkdirAll("/d"))
	f, err := mem.Open("/d/thesis.txt", vfs.Create)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	cfg := raftstore.Config{Dir: "/d", Cluster: moraine.UUID{1}, Node: "m1", Peers: []raftstore.Peer{{ID: "m1", Address: "m1"}}}

	err = raftstore.Bootstrap(cfg, raftstore.Deps{FS: mem})
	require.ErrorIs(t, err, moraine.NotEmpty)
	require.ErrorContains(t, err, "thesis.txt")
	names, err := mem.List("/d")
	require.NoError(t, err)
	require.Equal(t, []string{"thesis.txt"}, names, "it is left as it was")

	require.NoError(t, mem.Remove("/d/thesis.txt"))
	require.NoError(t, mem.MkdirAll("/d/lost+found"))
	require.NoError(t, raftstore.Bootstrap(cfg, raftstore.Deps{FS: mem}), "the root of a new file system is empty")
}
