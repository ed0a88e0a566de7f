package raftstore_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// loadedKeys is how many entries a load of a test applies, one key each.
const loadedKeys = 50

// fill applies "set k<i> <i>", "add n" and a scan, in each entry.
func fill(l *raftstore.Loader) error {
	for i := range loadedKeys {
		err := l.Apply(func(kv kvtx.KV, index uint64) error {
			if _, err := (kvFSM{}).ApplyEntry(kv, index, fmt.Appendf(nil, "set k%02d %d", i, i)); err != nil {
				return err
			}
			seen := 0
			if err := kv.Scan([]byte("k"), []byte("l"), func(_, _ []byte) bool { seen++; return true }); err != nil {
				return err
			}
			if seen != i+1 {
				return fmt.Errorf("a scan in entry %d sees %d keys", index, seen)
			}
			_, err := (kvFSM{}).ApplyEntry(kv, index, []byte("add n"))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// baseConfig is the configuration of the loaded node.
func (g *group) baseConfig() raftstore.Config {
	cfg := g.config("m1")
	cfg.Dir, cfg.Node, cfg.Peers = "/base", "base", []raftstore.Peer{{ID: "base", Address: "nowhere"}}
	return cfg
}

// requireLoaded checks the group of a loaded state with `add n` applied since times, including this
// one; or more often if the answer to one was lost.
func (g *group) requireLoaded(since uint64) {
	g.t.Helper()
	require.GreaterOrEqual(g.t, g.propose("add n"), loadedKeys+since, "numbers go on where the load ended")
	want := g.leader().store.Status().Applied
	for _, name := range g.names {
		n := g.nodes[name]
		eventually(g.t, name+" catches up", func() bool { return n.store.Status().Applied >= want })
		for i := range loadedKeys {
			require.Equal(g.t, fmt.Sprint(i), n.get(fmt.Sprintf("k%02d", i)), "key %d on %s", i, name)
		}
	}
}

// Three nodes seeded from a loaded state form a group that continues from there, also after a
// restart. The loaded node does not change, so that another group can start from it.
func TestSeedAGroupWithALoadedState(t *testing.T) {
	disk := vfs.NewMem(7)
	for round := range 2 {
		g := newGroup(t, 3, func(name string, cfg *raftstore.Config) { cfg.Dir = fmt.Sprintf("/round-%d-%s", round, name) })
		for _, name := range g.names {
			g.fs[name] = disk // hard links
		}
		if round == 0 {
			base := g.baseConfig()
			require.NoError(t, raftstore.Load(base, raftstore.Deps{FS: disk}, fill))
			require.ErrorIs(t, raftstore.Load(base, raftstore.Deps{FS: disk}, fill), moraine.Exists, "what is there is not written over")
		}
		for _, name := range g.names {
			require.NoError(t, raftstore.Seed(g.config(name), g.deps(name), "/base"))
			require.ErrorIs(t, raftstore.Seed(g.config(name), g.deps(name), "/base"), moraine.Exists)
		}
		g.startAll()
		g.requireLoaded(1)
		g.stopAll()
		g.startAll()
		g.requireLoaded(2)
		g.stopAll()
	}
}

// A node that is added to a seeded group gets the state from a snapshot.
func TestSeededGroupFillsANewMember(t *testing.T) {
	g := newGroup(t, 1, nil)
	require.NoError(t, raftstore.Load(g.baseConfig(), raftstore.Deps{FS: g.fs["m1"]}, fill))
	require.NoError(t, raftstore.Seed(g.config("m1"), g.deps("m1"), "/base"))
	g.startAll()
	g.propose("add n")
	g.names = append(g.names, "m2")
	g.fs["m2"] = vfs.NewMem(2)
	require.NoError(t, raftstore.Join(g.config("m2"), g.deps("m2")))
	g.start("m2")
	require.NoError(t, g.leader().store.AddMember(ctxFor(10e9), "m2", "m2", true))
	g.requireLoaded(2)
}

// A load and a seed that stop at any step, and lose what is not durable, may be repeated with the
// same result. Once they have returned, everything is durable.
func TestLoadAndSeedCutShort(t *testing.T) {
	for _, what := range []string{"load", "seed"} {
		for n, whole := 0, false; !whole; n += 1 + n/5 {
			g := newGroup(t, 1, nil)
			disk := vfs.NewMem(uint64(n))
			load := func(fs vfs.FS) error { return raftstore.Load(g.baseConfig(), raftstore.Deps{FS: fs}, fill) }
			seed := func(fs vfs.FS) error {
				return raftstore.Seed(g.config("m1"), raftstore.Deps{FS: fs}, "/base")
			}
			first := load
			if what == "seed" {
				require.NoError(t, load(disk))
				first = seed
			}
			var seen atomic.Int64
			var left *vfs.Mem
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			require.NoError(t, first(vfs.NewFault(disk, func(vfs.Op) error {
				if seen.Add(1) == int64(n)+1 {
					left = disk.Crash(rng)
				}
				return nil
			})))
			if whole = left == nil; whole {
				require.Greater(t, n, 20, what)
				left = disk.Crash(rng)
			}
			err := first(left)
			if whole || err != nil {
				require.ErrorIs(t, err, moraine.Exists, "%s, step %d", what, n)
			}
			if what == "load" {
				require.NoError(t, seed(left))
			}
			g.fs["m1"] = left
			g.startAll()
			g.requireLoaded(1)
			g.stopAll()
		}
	}
}

// Only an unchanged loaded state of the same cluster can be seeded from.
func TestSeedRefuses(t *testing.T) {
	g := newGroup(t, 1, nil)
	g.bootstrap()
	g.startAll()
	g.propose("add n")
	g.stopAll()
	cfg := g.config("m1")
	cfg.Dir = "/other"
	err := raftstore.Seed(cfg, g.deps("m1"), "/node")
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.True(t, strings.Contains(err.Error(), "does not contain a loaded state"), err)
	require.NoError(t, raftstore.Load(g.baseConfig(), raftstore.Deps{FS: g.fs["m1"]}, fill))
	cfg.Cluster = moraine.UUID{9}
	require.ErrorIs(t, raftstore.Seed(cfg, g.deps("m1"), "/base"), moraine.WrongCluster)
}

// A checkpoint is extracted with all its bytes, durably, however large its files other than tables
// are: pebble starts a new manifest only at 128 MiB.
func TestCheckpointWithALargeManifestIsLaidOut(t *testing.T) {
	disk := vfs.NewMem(5)
	require.NoError(t, disk.MkdirAll("/from"))
	large := make([]byte, 17<<20+3)
	for i := range large {
		large[i] = byte(i >> 8 * 31)
	}
	files := map[string][]byte{"000004.sst": []byte("table"), "MANIFEST-000001": large, "marker.manifest.000001.MANIFEST-000001": {}}
	for name, p := range files {
		writeAll(t, disk, "/from/"+name, p)
		f, err := disk.Open("/from/"+name, vfs.Read)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, f.Close())
	}
	require.NoError(t, raftstore.LinkCheckpoint(disk, "/from", "/to"))
	require.NoError(t, disk.SyncDir("/"))
	left := disk.Crash(rand.New(rand.NewPCG(1, 2)))
	for name, p := range files {
		require.True(t, bytes.Equal(p, readAll(t, left, "/to/"+name)), name)
	}
}
