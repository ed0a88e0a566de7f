package disk_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// neighbour and filler are live chunks.
var neighbour, filler = moraine.ChunkID{Stripe: 2}, moraine.ChunkID{Stripe: 3}

// TestTheDeadOfOneChunkGoInOrder replaces a chunk several times, each version in a
// segment of its own, and deletes it. It cuts the power at each call that reclaims
// the space. In each case all versions must stay dead, also after all reclaimable
// space is reclaimed and the index is lost.
func TestTheDeadOfOneChunkGoInOrder(t *testing.T) {
	id := moraine.ChunkID{Stripe: 1}
	for stopAt := 1; ; stopAt++ {
		for seed := range uint64(6) {
			left := reclaimCutAt(t, id, stopAt, seed)
			if left == nil {
				require.Greater(t, stopAt, 6, "there was little to cut")
				return
			}
			cfg := config("/d")
			d := open(t, left, cfg)
			for range 3 { // the first round settles what the second removes
				require.NoError(t, d.ReclaimNow())
				d.FlushIndex()
			}
			require.NoError(t, d.Close())
			require.NoError(t, left.RemoveAll("/d/index"))
			d = open(t, left, cfg)
			headers := mustList(t, d)
			require.Len(t, headers, 2, "cut at call %d, seed %d", stopAt, seed)
			require.Equal(t, neighbour, headers[0].ID)
			require.Equal(t, filler, headers[1].ID)
			require.NoError(t, d.Close())
		}
	}
}

// reclaimCutAt returns what a power cut at the given call leaves. It returns nil if
// there were fewer calls.
func reclaimCutAt(t *testing.T, id moraine.ChunkID, stopAt int, seed uint64) (left *vfs.Mem) {
	mem := vfs.NewMem(seed)
	rng := rand.New(rand.NewPCG(seed, uint64(stopAt)))
	calls, counting := 0, false
	fsys := vfs.NewFault(mem, func(op vfs.Op) error {
		if op.Kind == vfs.OpPunchHole || op.Kind == vfs.OpSync && strings.HasSuffix(op.Path, ".seg") {
			if counting {
				calls++
			}
			if calls == stopAt && left == nil {
				left = mem.Crash(rng)
			}
		}
		return nil
	})
	format(t, mem, "/d")
	cfg := config("/d")
	cfg.SegmentBytes = 10 * 4096
	d, err := disk.Open(cfg, disk.Deps{FS: fsys})
	require.NoError(t, err)
	for v := range 4 {
		c := tiertest.MakeChunk(t, id, moraine.LayoutVersion(v+1), 20_000, uint64(v))
		require.NoError(t, c.Put(t, d))
		if v == 1 {
			// The second version lies beside a live chunk in a complete segment. No
			// scan reads that segment again.
			require.NoError(t, tiertest.MakeChunk(t, neighbour, 1, 100, 9).Put(t, d))
			require.NoError(t, tiertest.MakeChunk(t, filler, 1, 30_000, 9).Put(t, d))
			require.NoError(t, d.ReclaimNow())
		}
	}
	require.NoError(t, d.Delete(t.Context(), id, 5))
	d.FlushIndex() // which has no entry for the chunk now
	counting = true
	require.NoError(t, d.ReclaimNow())
	counting = false
	require.NoError(t, d.Close())
	return left
}
