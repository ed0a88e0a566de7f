package agent

import (
	"context"
	"encoding/binary"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/crc"
)

const (
	// sumShare is how many bytes one goroutine sums at a time, a multiple of BlockSize.
	sumShare = 8 << 20
	// maxSummers bounds the goroutines for one part: more do not read memory faster.
	maxSummers = 8
)

// fix computes the sums of a part whose trainer has computed none. A trainer still has the slot mapped:
// from here on, a change of its bytes is found. It ends early if ctx ends.
func (m *manifest) fix(ctx context.Context, mem []byte) error {
	if m.Seal.SumsAt != 0 {
		return nil
	}
	m.Sums = make([]byte, 4*blocksOf(&m.Seal))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(maxSummers, runtime.GOMAXPROCS(0)))
	table := m.Sums
	eachRange(&m.Seal, func(at, bytes int64) {
		for bytes > 0 {
			n := min(bytes, sumShare)
			p, dst := mem[at:at+n], table[:4*blockCount(n)]
			g.Go(func() error {
				for i, s := range crc.Blocks(nil, p) {
					binary.LittleEndian.PutUint32(dst[4*i:], s)
				}
				return ctx.Err()
			})
			table, at, bytes = table[len(dst):], at+n, bytes-n
		}
	})
	return g.Wait()
}

// blockSums returns the sums of the tensors, then of the blobs: those of the trainer, or of fix.
func (m *manifest) blockSums(mem []byte) (sums [][]uint32) {
	table := m.Sums
	if m.Seal.SumsAt != 0 {
		table = mem[m.Seal.SumsAt:]
	}
	eachRange(&m.Seal, func(_, bytes int64) {
		s := make([]uint32, blockCount(bytes))
		for i := range s {
			s[i] = binary.LittleEndian.Uint32(table[4*i:])
		}
		table = table[4*len(s):]
		sums = append(sums, s)
	})
	return sums
}

// eachRange calls f with the place of each tensor in the slot, then of each blob.
func eachRange(seal *agentproto.Seal, f func(at, bytes int64)) {
	for _, t := range seal.Tensors {
		f(t.At, t.Bytes)
	}
	for _, b := range seal.Blobs {
		f(b.At, b.Bytes)
	}
}

func blockCount(bytes int64) int64 { return (bytes + moraine.BlockSize - 1) / moraine.BlockSize }

// blocksOf returns how many blocks a part has.
func blocksOf(seal *agentproto.Seal) (n int64) {
	eachRange(seal, func(_, bytes int64) { n += blockCount(bytes) })
	return n
}
