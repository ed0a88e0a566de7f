package raftstore_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// flip turns one bit in the middle of the first file below dir whose name ends so.
func flip(t *testing.T, fsys vfs.FS, dir, suffix string, at int64) bool {
	names, err := fsys.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := fsys.Stat(path)
		require.NoError(t, err)
		if info.Dir {
			if flip(t, fsys, path, suffix, at) {
				return true
			}
			continue
		}
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		f, err := fsys.Open(path, vfs.Write)
		require.NoError(t, err)
		b := make([]byte, 1)
		_, err = f.ReadAt(b, at)
		require.NoError(t, err)
		b[0] ^= 4
		_, err = f.WriteAt(b, at)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return true
	}
	return false
}

// TestFlippedBitOfTheState flips a bit of a value on disk that nothing reads at the node's start.
// It is not served, and the node ends with the first read of it.
func TestFlippedBitOfTheState(t *testing.T) {
	g := newGroup(t, 1, nil)
	g.bootstrap()
	n := g.start("m1")
	rng := rand.New(rand.NewPCG(1, 1))
	key := func(i int) string { return fmt.Sprintf("key-%04d", i) }
	for i := range 200 {
		value := make([]byte, 1000)
		for j := range value {
			value[j] = 'a' + byte(rng.IntN(26))
		}
		g.propose("set " + key(i) + " " + string(value))
	}
	require.NoError(t, n.store.TakeSnapshot())
	require.NoError(t, g.halt("m1"))
	damage := func() (err error) {
		require.NoError(t, raftstore.InspectSnapshots(g.fs["m1"], "/node", func(i raftstore.SnapshotInfo) error {
			err = i.Damage
			return nil
		}))
		return err
	}
	require.NoError(t, damage())
	require.NoError(t, damage(), "the look left it as it was")
	require.True(t, flip(t, g.fs["m1"], "/node/state", ".sst", 60_000))
	require.ErrorContains(t, damage(), "checksum", "the snapshot has the same files")
	n = g.start("m1")
	g.leader()
	go func() { // pebble ends the goroutine that meets it
		for i := range 200 {
			_ = n.store.View(func(r kvtx.Reader, _ uint64) error {
				_, _, err := r.Get([]byte(key(i)))
				return err
			})
		}
	}()
	select {
	case err := <-n.ended:
		require.ErrorContains(t, err, "checksum")
		delete(g.nodes, "m1")
	case <-time.After(20 * time.Second):
		t.Fatal("the node goes on")
	}
}
