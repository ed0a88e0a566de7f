package bitflips_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport/wire"
)

// place is where one bit flips in the path of a file's bytes.
type place struct {
	// before sets the flip up before the file is written, after does it once it was.
	before func(w *world)
	after  func(w *world)
	// refused: the write must fail, as the only right bytes are gone.
	refused bool
	// found checks that the flip was found and counted.
	found func(w *world)
}

// TestBitFlips flips one bit in each place where the bytes of a file stand between its writer and
// its reader: it is found and counted, healed where redundancy allows, and no wrong byte is
// served. (docs/SEMANTICS.md, "No single flipped bit is served", names the tests of the places
// that only a package can reach: staging memory, pieces, chunks in memory, the metadata.)
func TestBitFlips(t *testing.T) {
	for name, p := range map[string]place{
		"a writer's buffer after the sum": {before: func(w *world) { w.flipPuts(1, false) }, refused: true, found: refusedPut},
		"a chunk on its way to a server":  {before: func(w *world) { w.flipPuts(1, true) }, found: refusedPut},
		"a chunk on its way to a reader":  {after: flipGet},
		"a chunk on disk":                 {after: rotOne},
		"parity before it is summed":      {before: func(w *world) { w.net.encodeWrong(firstParity) }, after: scrubOne},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, incluster.Options{ScrubParity: 10_000}, func(w *world) {
				if p.before != nil {
					p.before(w)
				}
				err := w.write()
				w.net.set(func() { w.net.put, w.net.commit = nil, nil })
				if p.found != nil {
					p.found(w)
				}
				if p.refused {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				if p.after != nil {
					p.after(w)
				}
				require.NoError(t, w.read(0, fileBytes))
				w.until("repair", func() bool { return w.topology().RepairQueued == 0 })
				require.Zero(t, w.scrub(), "all is healed")
				w.Kill(w.holder(0), w.holder(firstParity))
				require.NoError(t, w.read(0, fileBytes), "as many hosts may be lost as before")
			})
		})
	}
}

// flipPuts flips a bit of a chunk that is put: on the way of the first request alone, or in the
// memory of the writer, for good.
func (w *world) flipPuts(index uint32, onTheWay bool) {
	over := false
	w.net.set(func() {
		w.net.put = func(req *wire.PutChunk, data [][]byte) {
			if req.Index != index || over {
				return
			}
			over = onTheWay
			data[0] = bytes.Clone(data[0])
			data[0][99] ^= 4
		}
	})
}

func refusedPut(w *world) {
	w.t.Helper()
	refused := 0.0
	for i := 1; i <= 8; i++ {
		refused += counted(w.t, w.ChunkMetrics("n"+string(rune('0'+i))).Puts.WithLabelValues(moraine.Corrupt.String()))
	}
	require.Positive(w.t, refused)
}

// flipGet flips a bit of the first payload that a reader gets.
func flipGet(w *world) {
	flipped := false
	w.net.set(func() {
		w.net.get = func(_ *wire.GetChunk, p []byte) {
			if !flipped && len(p) > 0 {
				flipped = true
				p[len(p)/2] ^= 4
			}
		}
	})
	require.NoError(w.t, w.read(0, fileBytes))
	require.True(w.t, flipped)
}

func rotOne(w *world) {
	before := w.stripe()
	w.rotOnDisk(w.holder(2), moraine.ChunkID{Stripe: moraine.StripeID(before.Id), Index: 2})
	require.EqualValues(w.t, 1, w.scrub(), "it is found")
	w.repairedFrom(before)
}

func scrubOne(w *world) {
	before := w.stripe()
	require.EqualValues(w.t, 1, w.scrub(), "it is found")
	w.repairedFrom(before)
}
