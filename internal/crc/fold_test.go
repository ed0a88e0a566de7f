package crc_test

import (
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/crc"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Every length around the borders of the wide loop, at every alignment, with a sum before it.
func TestUpdateEqualsTheStandardLibrary(t *testing.T) {
	p := random(5, 1<<20)
	lengths := []int{64 << 10, 64<<10 + 1, 256<<10 + 63, 1<<20 - 64}
	for n := range 2100 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		for _, off := range []int{0, 1, 13, 63} {
			before := uint32(n)*2654435761 + uint32(off)
			want := crc32.Update(before, castagnoli, p[off:off+n])
			require.Equal(t, want, crc.Update(before, p[off:off+n]), "%d bytes at %d", n, off)
		}
	}
}

// A changed bit anywhere in a block changes its checksum.
func TestEveryBitCounts(t *testing.T) {
	p := random(6, 4096)
	want := crc.Sum(p)
	for bit := range 8 * len(p) {
		p[bit/8] ^= 1 << (bit % 8)
		require.NotEqual(t, want, crc.Sum(p), "bit %d", bit)
		p[bit/8] ^= 1 << (bit % 8)
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), random(7, 1000))
	f.Fuzz(func(t *testing.T, before uint32, p []byte) {
		if got, want := crc.Update(before, p), crc32.Update(before, castagnoli, p); got != want {
			t.Fatalf("%08x, the standard library %08x", got, want)
		}
	})
}

// BenchmarkSum checksums 64 KiB that are in the processor's cache, and that are not.
func BenchmarkSum(b *testing.B) {
	const size = 64 << 10
	p := random(8, 256<<20)
	for name, reach := range map[string]int{"cached": 512 << 10, "memory": len(p)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for i := 0; b.Loop(); i += size {
				crc.Sum(p[i%reach:][:size])
			}
		})
	}
}
