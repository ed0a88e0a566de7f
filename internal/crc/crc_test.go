package crc_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

func random(seed uint64, n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = r.Read(p)
	return p
}

func TestSumIsCRC32C(t *testing.T) {
	// The check value of CRC-32C (RFC 3720, appendix B.4 uses the same polynomial).
	require.Equal(t, uint32(0xE3069283), crc.Sum([]byte("123456789")))
	require.Equal(t, uint32(0x8A9136AA), crc.Sum(make([]byte, 32)))
	require.Zero(t, crc.Sum(nil))
	require.Equal(t, crc.Sum([]byte("ab")), crc.Update(crc.Sum([]byte("a")), []byte("b")))
}

func TestCombineEqualsSumOfWhole(t *testing.T) {
	p := random(1, 3<<20)
	for _, cut := range []int{0, 1, 7, 4095, 4096, 4097, 1 << 20, 3<<20 - 4096, 3<<20 - 1, 3 << 20} {
		a, b := p[:cut], p[cut:]
		require.Equal(t, crc.Sum(p), crc.Combine(crc.Sum(a), crc.Sum(b), int64(len(b))), "cut at %d", cut)
	}
}

func TestCombineBlocksEqualsSum(t *testing.T) {
	p := random(2, 1<<20+1)
	for _, n := range []int{0, 1, 4095, 4096, 4097, 8192, 8193, 12288, 1 << 20, 1<<20 + 1} {
		blocks := crc.Blocks(nil, p[:n])
		require.Len(t, blocks, crc.BlockCount(int64(n)))
		require.Equal(t, crc.Sum(p[:n]), crc.CombineBlocks(blocks, int64(n)), "%d bytes", n)
	}
	// Checksums made piece by piece, as a receiver makes them, are the same.
	var pieces []uint32
	for off := 0; off < len(p); off += 256 << 10 {
		pieces = crc.Blocks(pieces, p[off:min(off+256<<10, len(p))])
	}
	require.Equal(t, crc.Blocks(nil, p), pieces)
}

func TestCombineBlocksRefusesAWrongCount(t *testing.T) {
	require.Panics(t, func() { crc.CombineBlocks([]uint32{1}, moraine.BlockSize+1) })
	require.Panics(t, func() { crc.CombineBlocks(nil, 1) })
	require.Panics(t, func() { crc.Combine(1, 2, -1) })
}

func FuzzCombine(f *testing.F) {
	f.Add([]byte("hello"), []byte("world"))
	f.Add([]byte{}, []byte{0})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		whole := append(append([]byte{}, a...), b...)
		if got, want := crc.Combine(crc.Sum(a), crc.Sum(b), int64(len(b))), crc.Sum(whole); got != want {
			t.Fatalf("combined %08x, summed %08x", got, want)
		}
	})
}

func BenchmarkCombineBlocks4MiB(b *testing.B) {
	blocks := crc.Blocks(nil, random(3, 4<<20))
	for b.Loop() {
		crc.CombineBlocks(blocks, 4<<20)
	}
}

func BenchmarkBlocks256KiB(b *testing.B) {
	p := random(4, 256<<10)
	dst := make([]uint32, 0, 64)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		dst = crc.Blocks(dst[:0], p)
	}
}
