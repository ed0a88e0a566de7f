package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The copy loop of a save (client/ckpt): pieces that stay in the processor's cache are copied,
// then summed. Another goroutine is worth it for copyShare bytes.
const (
	copyPiece = 64 << 10
	copyShare = 4 << 20
	// copyPasses is how often a limit is measured; the best pass counts.
	copyPasses = 3
)

// warmArenas maps shared memory for the part of each rank, with all its pages, as slots of an
// agent are. end unmaps it.
func warmArenas(ts *trainers) (arenas [][]byte, end func(), err error) {
	end = func() {
		for _, a := range arenas {
			_ = unix.Munmap(a) // the process ends
		}
	}
	for _, t := range ts.ranks {
		a, err := unix.Mmap(-1, 0, int(t.shard.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
		if err != nil {
			return arenas, end, fmt.Errorf("bench: memory for a part: %w", err)
		}
		arenas = append(arenas, a)
		_ = unix.Madvise(a, unix.MADV_HUGEPAGE) // smaller pages do too
		if err := unix.Madvise(a, unix.MADV_POPULATE_WRITE); err != nil {
			return arenas, end, fmt.Errorf("bench: memory for a part: %w", err)
		}
	}
	return arenas, end, nil
}

// copyRate measures copies between the tensors of all ranks and arenas, in bytes a second. All
// ranks copy at once, each with as many goroutines as a save has.
func copyRate(ctx context.Context, ts *trainers, arenas [][]byte, do copying) (best float64, err error) {
	for range copyPasses {
		start := time.Now()
		err := ts.each(ctx, func(_ context.Context, t *trainer) error {
			rest := arenas[t.rank]
			for _, d := range t.shard.Data() {
				do.tensor(rest[:len(d)], d)
				rest = rest[len(d):]
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		best = max(best, perSecond(ts.bytes, time.Since(start)))
	}
	return best, nil
}

// copying copies a piece between an arena and a tensor.
type copying func(arena, tensor []byte, sums []uint32)

// tensor copies one tensor by several goroutines.
func (do copying) tensor(arena, tensor []byte) {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for at := 0; at < len(tensor); at += copyShare {
		end := min(at+copyShare, len(tensor))
		g.Go(func() error {
			var sums [copyPiece / moraine.BlockSize]uint32
			for at := at; at < end; at += copyPiece {
				to := min(at+copyPiece, end)
				do(arena[at:to], tensor[at:to], sums[:0])
			}
			return nil
		})
	}
	_ = g.Wait() // they return none
}

// The copies of a save, and of a restore from the memory of the node without its verification.
func copyAndSum(arena, tensor []byte, sums []uint32) { copy(arena, tensor); crc.Blocks(sums, arena) }
func copyBack(arena, tensor []byte, _ []uint32)      { copy(tensor, arena) }
