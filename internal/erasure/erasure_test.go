package erasure_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/erasure"
)

func slices(n, size int) [][]byte {
	s := make([][]byte, n)
	for i := range s {
		s[i] = make([]byte, size)
	}
	return s
}

func fill(rng *rand.Rand, s [][]byte) {
	for _, p := range s {
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
	}
}

func encoded(t require.TestingT, scheme moraine.Scheme, size int, seed uint64) (*erasure.Coder, [][]byte) {
	c, err := erasure.New(scheme)
	require.NoError(t, err)
	all := slices(scheme.Chunks(), size)
	fill(rand.New(rand.NewPCG(seed, 1)), all[:scheme.K])
	require.NoError(t, c.Encode(all[:scheme.K], all[scheme.K:]))
	return c, all
}

// Any K chunks suffice to rebuild every other one, for every scheme, length and
// loss.
func TestReconstructFromAnyK(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 12).Draw(t, "k")
		m := rapid.IntRange(0, 5).Draw(t, "m")
		scheme := moraine.Scheme{K: uint8(k), M: uint8(m)}
		size := rapid.IntRange(1, 9000).Draw(t, "size")
		c, all := encoded(t, scheme, size, rapid.Uint64().Draw(t, "seed"))

		order := rapid.Permutation(indexes(k+m)).Draw(t, "order")
		lost := rapid.IntRange(0, m).Draw(t, "lost")
		have, want := make([][]byte, k+m), make([][]byte, k+m)
		for n, i := range order {
			if n >= lost {
				have[i] = bytes.Clone(all[i])
			}
			if rapid.Bool().Draw(t, "wanted") {
				want[i] = make([]byte, size)
			}
		}
		require.NoError(t, c.Reconstruct(have, want))
		for i := range all {
			if want[i] != nil {
				require.Equal(t, all[i], want[i], "chunk %d", i)
			}
			if have[i] != nil {
				require.Equal(t, all[i], have[i], "chunk %d changed", i)
			}
		}
	})
}

func indexes(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// Encoding column by column, of any widths, yields the same parity as encoding
// whole chunks.
func TestEncodeByColumns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 8).Draw(t, "k")
		m := rapid.IntRange(0, 4).Draw(t, "m")
		size := rapid.IntRange(1, 5000).Draw(t, "size")
		scheme := moraine.Scheme{K: uint8(k), M: uint8(m)}
		c, all := encoded(t, scheme, size, rapid.Uint64().Draw(t, "seed"))
		parity := slices(m, size)
		for off := 0; off < size; {
			end := off + rapid.IntRange(1, size-off).Draw(t, "width")
			require.NoError(t, c.Encode(columns(all[:k], off, end), columns(parity, off, end)))
			off = end
		}
		require.Equal(t, all[k:], parity)
	})
}

func columns(s [][]byte, off, end int) [][]byte {
	out := make([][]byte, len(s))
	for i := range s {
		out[i] = s[i][off:end]
	}
	return out
}

func TestTooFewChunksAreLost(t *testing.T) {
	for _, s := range []string{"4+2", "8+3", "x3", "3+0"} {
		scheme, err := moraine.ParseScheme(s)
		require.NoError(t, err)
		c, all := encoded(t, scheme, 4096, 7)
		have, want := make([][]byte, len(all)), make([][]byte, len(all))
		for i := range int(scheme.K) - 1 {
			have[i] = all[i]
		}
		want[scheme.K-1] = make([]byte, 4096)
		err = c.Reconstruct(have, want)
		require.True(t, errors.Is(err, moraine.Lost), "%s: %v", s, err)
	}
}

func TestWrongArguments(t *testing.T) {
	c, all := encoded(t, moraine.Scheme{K: 4, M: 2}, 4096, 7)
	for name, err := range map[string]error{
		"few data":      c.Encode(all[:3], all[4:]),
		"few parity":    c.Encode(all[:4], all[5:]),
		"empty":         c.Encode(slices(4, 0), slices(2, 0)),
		"uneven data":   c.Encode(append(slices(3, 4096), make([]byte, 1)), slices(2, 4096)),
		"uneven parity": c.Encode(slices(4, 4096), slices(2, 4095)),
		"few have":      c.Reconstruct(all[:5], make([][]byte, 6)),
		"uneven have":   c.Reconstruct(append(slices(5, 4096), make([]byte, 9)), make([][]byte, 6)),
		"uneven want":   c.Reconstruct(all, append(make([][]byte, 5), make([]byte, 9))),
	} {
		require.True(t, errors.Is(err, moraine.InvalidArgument), "%s: %v", name, err)
	}
	_, err := erasure.New(moraine.Scheme{K: 0, M: 2})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	_, err = erasure.New(moraine.Scheme{K: 31, M: 2})
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// Parity on disk must keep its meaning for ever.
func TestGoldenParity(t *testing.T) {
	var out strings.Builder
	for _, s := range []string{"x2", "2+1", "4+2", "8+3", "10+4"} {
		scheme, err := moraine.ParseScheme(s)
		require.NoError(t, err)
		c, err := erasure.New(scheme)
		require.NoError(t, err)
		data, parity := slices(int(scheme.K), 32), slices(int(scheme.M), 32)
		for i := range data {
			for j := range data[i] {
				data[i][j] = byte(i*32 + j*7 + 1)
			}
		}
		require.NoError(t, c.Encode(data, parity))
		for i, p := range parity {
			fmt.Fprintf(&out, "%s %d %s\n", s, i, hex.EncodeToString(p))
		}
	}
	file := filepath.Join("testdata", "parity.golden")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}

func TestCacheGivesOneCoder(t *testing.T) {
	var cache erasure.Cache
	a, err := cache.Get(moraine.Scheme{K: 4, M: 2})
	require.NoError(t, err)
	b, err := cache.Get(moraine.Scheme{K: 4, M: 2})
	require.NoError(t, err)
	require.Same(t, a, b)
	_, err = cache.Get(moraine.Scheme{})
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

func BenchmarkEncodePieces(b *testing.B) {
	const chunk = 4 << 20
	c, all := encoded(b, moraine.Scheme{K: 4, M: 2}, chunk, 1)
	b.SetBytes(4 * chunk)
	for b.Loop() {
		for off := 0; off < chunk; off += erasure.PieceSize {
			end := off + erasure.PieceSize
			if err := c.Encode(columns(all[:4], off, end), columns(all[4:], off, end)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
