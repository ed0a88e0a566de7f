package mem_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// BenchmarkViewFromMemory lends ranges of chunks in memory, each verified.
func BenchmarkViewFromMemory(b *testing.B) {
	for _, n := range []int64{4 << 10, 64 << 10, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) {
			s := memOverDisk(b)
			const chunks = 16
			for i := range chunks {
				take(b, s, tiertest.MakeChunk(b, id(i+1), 1, 4*mib, uint64(i)), moraine.NVMe)
			}
			b.SetBytes(n)
			for i := 0; b.Loop(); i++ {
				v, err := s.View(b.Context(), id(i%chunks+1), int64(i)*n%(4*mib), n)
				require.NoError(b, err)
				v.Release()
			}
		})
	}
}
