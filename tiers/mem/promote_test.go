package mem_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// lowerReads counts the reads of the tier below, and their bytes. fail, if it is set, fails some.
type lowerReads struct {
	mem.Lower
	calls, bytes atomic.Int64
	fail         func(off, n int64) error
}

func (l *lowerReads) View(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	l.calls.Add(1)
	l.bytes.Add(n)
	if l.fail != nil {
		if err := l.fail(off, n); err != nil {
			return nil, err
		}
	}
	return l.Lower.View(ctx, id, off, n)
}

// scatteredStack is memory over a device with chunks 1 to n of a MiB, none of which is in memory.
func scatteredStack(t *testing.T, memory int64, n int) (*stack, *lowerReads, []byte) {
	t.Helper()
	fsys := vfs.NewMem(1)
	format(t, fsys)
	reads := &lowerReads{}
	s := open(t, memory, func(m *mem.Memory) mem.Lower {
		reads.Lower = openDisk(t, fsys, m)
		return reads
	})
	c := tiertest.MakeChunk(t, id(1), 1, mib, 1)
	for i := range n {
		require.NoError(t, tiertest.ChunkOf(id(i+1), 1, c.Data).Put(t, s))
	}
	return s, reads, c.Data
}

// readPart reads 4 KiB of a chunk, and compares them, as a host does that serves a client.
func readPart(t *testing.T, s *stack, chunk int, off int64, data []byte) {
	t.Helper()
	v, err := s.Lend(t.Context(), id(chunk), off, 4096)
	require.NoError(t, err)
	defer v.Release()
	require.Equal(t, data[off:off+4096], v.Data)
	require.Equal(t, crc.Sum(v.Data), v.CRC)
}

func TestAChunkWithScatteredReadsIsReadWhole(t *testing.T) {
	s, reads, data := scatteredStack(t, 32*mib, 1)
	for _, block := range []int64{7, 200, 31} {
		readPart(t, s, 1, 4096*block, data)
	}
	before := reads.calls.Load()
	for block := range int64(256) {
		readPart(t, s, 1, 4096*block, data)
	}
	require.Equal(t, before, reads.calls.Load(), "the device was read again")
	require.Equal(t, int64(mib+2*4096), reads.bytes.Load())
}

func TestAPassInPiecesReadsNoChunkWhole(t *testing.T) {
	s, reads, data := scatteredStack(t, 32*mib, 1)
	for block := range int64(256) {
		readPart(t, s, 1, 4096*block, data)
	}
	require.Equal(t, int64(mib), reads.bytes.Load())
}

// Chunks that do not fit into memory are read whole only as far as reads have earned it.
func TestScatteredReadsBeyondMemoryReadLittleInVain(t *testing.T) {
	const chunks, n = 48, 4000
	s, reads, data := scatteredStack(t, 24*mib, chunks)
	rng := rand.New(rand.NewPCG(3, 4))
	for range n {
		readPart(t, s, 1+rng.IntN(chunks), 4096*rng.Int64N(256), data)
	}
	require.Less(t, reads.bytes.Load(), int64(24*mib+(1+8)*n*4096))
	require.Greater(t, s.memory.Stats().Hits, uint64(n/20))
}

// A chunk that cannot be read whole is read in parts, also if that was tried.
func TestADamagedChunkIsReadInParts(t *testing.T) {
	s, reads, data := scatteredStack(t, 32*mib, 1)
	reads.fail = func(_, n int64) error {
		if n > 4096 {
			return fault(moraine.Corrupt, errors.New("bit rot in another block"))
		}
		return nil
	}
	for block := range int64(256) {
		readPart(t, s, 1, 4096*(255-block), data)
	}
	require.Greater(t, reads.bytes.Load(), int64(256*4096), "no chunk was read whole")
}
