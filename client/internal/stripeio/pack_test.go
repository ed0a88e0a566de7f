package stripeio

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport/wire"
)

// TestTakeFiles: files are divided in order, each exactly once, into parts that fit into a
// stripe and a commit. If only the stripe bounds them, none of several parts is less than a
// third of it.
func TestTakeFiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		size, wide := 100_000+rng.Int64N(400_000), rng.IntN(2) == 0
		var files []packedFile
		for n := range 1 + rng.IntN(128) {
			f := packedFile{inode: uint64(n), length: 1 + rng.Int64N(size/8), chunks: 3, pieces: make([]Located, 1)}
			if wide {
				f.chunks, f.pieces = rng.IntN(50), make([]Located, 1+rng.IntN(20))
			}
			files = append(files, f)
		}
		var parts []int64
		next := uint64(0)
		for rest := files; len(rest) > 0; {
			var part []packedFile
			part, rest = takeFiles(rest, size)
			require.NotEmpty(t, part)
			pieces, chunks := 0, 0
			for _, f := range part {
				require.Equal(t, next, f.inode)
				next, pieces, chunks = next+1, pieces+len(f.pieces), chunks+f.chunks
			}
			require.LessOrEqual(t, lengthOf(part), size)
			require.LessOrEqual(t, pieces, maxRewrittenRuns)
			require.LessOrEqual(t, chunks, wire.MaxPackChunks)
			parts = append(parts, lengthOf(part))
		}
		require.EqualValues(t, len(files), next)
		for _, n := range parts {
			if !wide && len(parts) > 1 {
				require.Greater(t, n, size/3, "%d of %d", parts, size)
			}
		}
	}
}
