package llama_test

import (
	"testing"

	"github.com/morainefs/moraine/internal/llama"
	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	require.Equal(t, int64(2_638_389_248), llama.Demo().Bytes())
	all := llama.Model{Layers: llama.PublishedLayers, Trained: func(string) bool { return false }}
	require.Equal(t, int64(8_030_261_248*2), all.Bytes()) // the published count of parameters, in bf16
	require.Len(t, all.Tensors(), 291)
}

func TestSizedModelsHavePublishedShapes(t *testing.T) {
	published := map[string][]int64{}
	for _, w := range (llama.Model{Layers: llama.PublishedLayers}).Tensors() {
		published[w.Name] = w.Shape
	}
	for _, bytes := range []int64{96 << 20, 2 << 30, 12 << 30} {
		m := llama.Sized(bytes)
		require.LessOrEqual(t, m.Bytes(), bytes)
		require.Greater(t, m.Bytes(), bytes-64<<10, "the last row that fits is there")
		tensors := m.Tensors()
		for _, w := range tensors[:len(tensors)-1] {
			require.Equal(t, published[w.Name], w.Shape, w.Name)
		}
		last := tensors[len(tensors)-1]
		require.Equal(t, published[last.Name][1:], last.Shape[1:])
		require.LessOrEqual(t, last.Shape[0], published[last.Name][0])
	}
}

func TestFillIsTheSameFromAnyOffset(t *testing.T) {
	whole := make([]byte, 10_000)
	llama.Fill(whole, 7, "w", 0)
	for off := range 40 {
		for _, n := range []int{0, 1, 7, 8, 9, 31, 32, 33, 5000} {
			part := make([]byte, n)
			llama.Fill(part, 7, "w", int64(off))
			require.Equal(t, whole[off:off+n], part, "offset %d, %d bytes", off, n)
			require.Equal(t, int64(-1), llama.Differs(part, 7, "w", int64(off)))
		}
	}
	other := make([]byte, 64)
	llama.Fill(other, 8, "w", 0)
	require.NotEqual(t, whole[:64], other)
	llama.Fill(other, 7, "v", 0)
	require.NotEqual(t, whole[:64], other)
	whole[9000] ^= 1
	require.Equal(t, int64(9000), llama.Differs(whole[5:], 7, "w", 5))
}

func TestDigestDoesNotDependOnTheWorld(t *testing.T) {
	m := llama.Small()
	var first string
	for _, world := range []uint32{1, 3, 4, 100} {
		var sums []llama.Sum
		for rank := range world {
			s := llama.NewShard(m, rank, world)
			s.Fill(5)
			require.NoError(t, s.Check(5))
			sums = append(sums, s.Sums()...)
		}
		d, err := llama.Digest(m, sums)
		require.NoError(t, err)
		if first == "" {
			first = d
		}
		require.Equal(t, first, d)
		_, err = llama.Digest(m, sums[1:])
		require.Error(t, err)
	}
}

func BenchmarkFill(b *testing.B) {
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		llama.Fill(p, 1, "w", 0)
	}
}
