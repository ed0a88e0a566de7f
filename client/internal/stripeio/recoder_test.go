package stripeio

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/erasure"
)

// badCore is a coder on a CPU core that computes wrongly, or with faulty memory: it changes
// data before or after the encoding.
type badCore struct {
	*erasure.Coder
	before, after func(data, parity [][]byte)
}

func (b *badCore) Encode(data, parity [][]byte) error {
	if b.before != nil {
		b.before(data, parity)
	}
	err := b.Coder.Encode(data, parity)
	if b.after != nil {
		b.after(data, parity)
	}
	return err
}

// TestABadCoreReplacesNoParity: the new parity's own checksum is not enough. The check finds a
// bit that is wrong in the parity, in its data, or in the copy.
func TestABadCoreReplacesNoParity(t *testing.T) {
	const piece, pieces = 8192, 3
	once := func(rng *rand.Rand, flip func(data, parity [][]byte, bit int)) func(data, parity [][]byte) {
		at := rng.IntN(pieces)
		return func(data, parity [][]byte) {
			if at--; at == -1 {
				flip(data, parity, rng.IntN(piece*8))
			}
		}
	}
	turn := func(p []byte, bit int) { p[bit/8] ^= 1 << (bit % 8) }
	for name, harm := range map[string]func(rng *rand.Rand, b *badCore, index int) (out bool){
		"none": func(*rand.Rand, *badCore, int) bool { return false },
		"parity": func(rng *rand.Rand, b *badCore, index int) bool {
			b.after = once(rng, func(_, parity [][]byte, bit int) { turn(parity[index], bit) })
			return false
		},
		"data before": func(rng *rand.Rand, b *badCore, _ int) bool {
			b.before = once(rng, func(data, _ [][]byte, bit int) { turn(data[rng.IntN(len(data))], bit) })
			return false
		},
		"copied out": func(*rand.Rand, *badCore, int) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				rng := rand.New(rand.NewPCG(seed, 9))
				k, m := 2+rng.IntN(5), 1+rng.IntN(3)
				coder, err := erasure.New(moraine.Scheme{K: uint8(k), M: uint8(m)})
				require.NoError(t, err)
				bad := &badCore{Coder: coder}
				parity := rng.IntN(m)
				changeOut := harm(rng, bad, parity)
				s := &Record{Stripe: moraine.Stripe{Chunks: make([]moraine.ChunkState, k+m)}}
				r := &recoder{coder: bad, k: k, m: m, index: k + parity, sums: make([]uint32, k)}
				var out []byte
				for range pieces {
					parts := make([][]byte, k+m+1)
					for i := range parts {
						parts[i] = make([]byte, piece)
						if i < k {
							for j := range parts[i] {
								parts[i][j] = byte(rng.Uint32())
							}
							s.Chunks[i].CRC = crc.Update(s.Chunks[i].CRC, parts[i])
						}
					}
					require.NoError(t, r.encode(parts))
					out = append(out, parts[r.index]...)
				}
				if changeOut {
					turn(out, rng.IntN(len(out)*8))
				}
				if err = r.check(s, out); name == "none" {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, moraine.Corrupt, "seed %d", seed)
				}
			}
		})
	}
}
