package ckpt_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/internal/testseed"
)

// TestAStepOfManyRanks saves a row of each tensor from each rank. One rank of as many, and one of
// fewer, restore their rows byte by byte. In the long form, 10,000 ranks save 1,000 tensors: a rank
// then reads less than a hundredth of the index, and after the commit the step takes no more memory
// than its chunks and 300 MB.
func TestAStepOfManyRanks(t *testing.T) {
	w := llama.Wide{Path: "/runs/wide", World: 260, Tensors: 40}
	if testseed.Long() {
		w.World, w.Tensors = 10_000, 1000
	}
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		cl := c.Client("ranks")
		defer cl.Close()
		before := heapBytes()
		_, err := w.Save(t.Context(), cl, 1, 0, w.World, 4)
		require.NoError(t, err)
		require.NoError(t, w.Wait(t.Context(), cl, 1))
		grown := heapBytes() - before - chunkBytes(c)
		for _, reader := range []struct{ rank, world uint32 }{{w.World / 2, w.World}, {3, w.World / 10}} {
			read, size, err := w.Restore(t.Context(), cl, 1, reader.rank, reader.world)
			require.NoError(t, err)
			t.Logf("rank %d of %d read %d bytes of an index of %d", reader.rank, reader.world, read, size)
			require.LessOrEqual(t, size, int64(w.World)*int64(w.Tensors)*25)
			if testseed.Long() && reader.world == w.World {
				require.Less(t, read, size/100)
			}
		}
		t.Logf("the heap grew by %d bytes beside the chunks", grown)
		require.Less(t, grown, int64(300<<20))
	})
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // what the first one found unused in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// chunkBytes returns the bytes of all chunks.
func chunkBytes(c *memcluster.Cluster) (n int64) {
	for _, h := range c.Hosts {
		n += h.Bytes()
	}
	return n
}
