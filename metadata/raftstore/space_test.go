package raftstore_test

import (
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
)

// A node that starts on a disk without a free block deletes its ballast first, because the write
// that probes the disk needs space.
func TestTheBallastIsReleasedBeforeTheProbe(t *testing.T) {
	g := newGroup(t, 1, func(_ string, cfg *raftstore.Config) { cfg.BallastBytes = 1 << 20 })
	mem := g.fs["m1"].(*vfs.Mem)
	mem.SetCapacity(1 << 30)
	g.bootstrap()
	g.start("m1")
	g.propose("set a b")
	require.NoError(t, g.halt("m1"))
	info, err := mem.Stat("/node/BALLAST")
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, info.Bytes)
	usage, err := mem.Usage("/")
	require.NoError(t, err)
	mem.SetCapacity(int64(usage.Total-usage.Free) - 256<<10) // what a file system takes for itself
	n := g.start("m1")
	select {
	case <-n.store.Ready():
	case err := <-n.ended:
		delete(g.nodes, "m1")
		t.Fatal(err)
	case <-time.After(30 * time.Second):
		t.Fatal("it does not start")
	}
	require.True(t, n.store.LowSpace())
	_, err = mem.Stat("/node/BALLAST")
	require.ErrorIs(t, err, fs.ErrNotExist)
	g.propose("set a c")
	require.Equal(t, "c", n.get("a"))
}
