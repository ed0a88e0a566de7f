package pebblevfs_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/internal/vfs/pebblevfs"
)

type quiet struct{ t testing.TB }

func (quiet) Infof(string, ...any)             {}
func (q quiet) Errorf(format string, a ...any) { q.t.Logf(format, a...) }
func (q quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func open(t testing.TB, fsys vfs.FS, dir string) *pebble.DB {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{
		FS: pebblevfs.New(fsys), FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: 64 << 10, Logger: quiet{t},
	})
	require.NoError(t, err)
	return db
}

func TestOnOSItIsPebblesOwn(t *testing.T) {
	require.Equal(t, pvfs.Default, pvfs.Root(pebblevfs.New(vfs.OS{})))
}

// TestOpenIsCrashSafe cuts the power at every operation of the first and the second
// open of a database, in many ways.
func TestOpenIsCrashSafe(t *testing.T) {
	mem := vfs.NewMem(1)
	var mu sync.Mutex
	var cuts []*vfs.Mem
	for range 2 {
		cutting := vfs.NewFault(mem, func(vfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			for range 2 {
				cuts = append(cuts, mem.Crash(nil))
			}
			return nil
		})
		db := open(t, cutting, "/db")
		require.NoError(t, db.Set([]byte("k"), []byte("v"), pebble.Sync))
		require.NoError(t, db.Close())
	}
	for _, after := range cuts {
		db := open(t, after, "/db")
		require.NoError(t, db.Close())
	}
}

// TestPowerCut checks pebble over a Mem: of the writes, a prefix that covers every
// synced one survives.
func TestPowerCut(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			mem := vfs.NewMem(seed)
			synced := 0
			for round := range 3 {
				db := open(t, mem, "/db")
				from := synced
				for i := range 100 + rng.IntN(200) {
					opt := pebble.NoSync
					if rng.IntN(20) == 0 {
						opt = pebble.Sync
					}
					n := from + i
					require.NoError(t, db.Set(fmt.Appendf(nil, "%08d", n), make([]byte, rng.IntN(2000)), opt))
					if opt == pebble.Sync {
						synced = n + 1
					}
				}
				after := mem.Crash(rng)
				require.NoError(t, db.Close())
				mem = after

				db = open(t, mem, "/db")
				it, err := db.NewIter(nil)
				require.NoError(t, err)
				count := 0
				for it.First(); it.Valid(); it.Next() {
					require.Equal(t, fmt.Sprintf("%08d", count), string(it.Key()), "round %d: a hole", round)
					count++
				}
				require.NoError(t, it.Close())
				require.GreaterOrEqual(t, count, synced, "round %d", round)
				synced = count
				require.NoError(t, db.Close())
			}
		})
	}
}

func TestCheckpointIsWholeAfterPowerCut(t *testing.T) {
	mem := vfs.NewMem(1)
	db := open(t, mem, "/db")
	for i := range 500 {
		require.NoError(t, db.Set(fmt.Appendf(nil, "%04d", i), make([]byte, 500), pebble.NoSync))
	}
	require.NoError(t, db.Checkpoint("/copy", pebble.WithFlushedWAL()))
	for i := range 500 {
		require.NoError(t, db.Set(fmt.Appendf(nil, "%04d", i), []byte("later"), pebble.NoSync))
	}
	for seed := range uint64(10) {
		after := mem.Crash(rand.New(rand.NewPCG(seed, 1)))
		copied := open(t, after, "/copy")
		v, closer, err := copied.Get([]byte("0499"))
		require.NoError(t, err)
		require.Len(t, v, 500)
		require.NoError(t, closer.Close())
		require.NoError(t, copied.Close())
	}
	require.NoError(t, db.Close())
}
