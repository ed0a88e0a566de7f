package stripeio

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// Rebuilt bytes are only as good as the parity. A CPU core that encodes wrongly makes parity
// with a matching checksum. Only the checksum of the rebuilt bytes, or the data themselves,
// reveal that. Data chunks got their checksums when they entered the system. So they are right
// if they match, and then the parity is wrong.

// rebuildWithout rebuilds a whole chunk that did not match its recorded checksum, each time
// without another parity chunk. If the result matches, it reports the chunk left out as wrong
// parity. Corrupt: no choice of chunks gives the recorded checksum; the bytes of t are then
// undefined.
func (e *Engine) rebuildWithout(ctx context.Context, g *gatherer, t target, piece int64) error {
	s := g.s
	want := s.Chunks[t.index].CRC
	for p := int(s.Scheme.K); p < len(s.Chunks) && !s.Scheme.IsCopies(); p++ {
		if p == t.index || g.exclude(p) {
			continue
		}
		if err := e.rebuildGroup(ctx, g.without(p), []target{t}, piece, nil); err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue
		}
		if crc.Sum(t.out) == want {
			e.wrongParity(s, p)
			return nil
		}
	}
	return &moraine.Error{Op: "rebuild", Ref: fmt.Sprintf("%s/%d", s.ID, t.index), Kind: moraine.Corrupt,
		Err: fmt.Errorf("rebuilt bytes do not have the recorded checksum %08x: the stripe's parity or its record is wrong", want)}
}

// wrongParity reports a parity chunk that does not match its stripe's data.
func (e *Engine) wrongParity(s *Record, index int) {
	e.metrics.ParityWrong.Inc()
	e.log.Error("parity does not match data", "stripe", s.ID, "index", index, "device", s.Chunks[index].Device)
	e.reports.addParity(s, index)
}

// without returns the gatherer with one more chunk excluded.
func (g *gatherer) without(index int) *gatherer {
	other := *g
	other.exclude = func(i int) bool { return i == index || g.exclude(i) }
	other.free = nil
	for _, f := range g.free {
		if f.index != index {
			other.free = append(other.free, f)
		}
	}
	return &other
}

// verifyRebuilt compares rebuilt bytes with the records before a read returns them: always for
// a whole chunk, and for a sample of the parts.
func (e *Engine) verifyRebuilt(ctx context.Context, g *gatherer, group []target, piece int64) error {
	length := g.s.Scheme.ChunkLen(g.s.Length)
	for _, t := range group {
		if int64(len(t.out)) == length {
			if crc.Sum(t.out) == g.s.Chunks[t.index].CRC {
				continue
			}
			if err := e.rebuildWithout(ctx, g, t, piece); err != nil {
				return err
			}
			continue
		}
		e.metrics.PartsRebuilt.Inc()
		if g.s.limited || !e.sample.pick() {
			continue
		}
		verified, err := e.verifyPart(ctx, g, t, piece)
		if verified {
			e.metrics.PartsVerified.Inc()
		} else {
			e.sample.missed()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// verifyPart rebuilds the whole chunk of a part, compares it with the recorded checksum, and
// corrects the part if it was wrong. verified says whether there was a comparison. There is
// none without memory for it, or if the rest of the chunks cannot be read now. Corrupt: as with
// rebuildWithout.
func (e *Engine) verifyPart(ctx context.Context, g *gatherer, t target, piece int64) (verified bool, err error) {
	length := g.s.Scheme.ChunkLen(g.s.Length)
	piece = e.samplePiece(g.s, length, piece)
	if piece == 0 {
		return false, nil
	}
	l := e.tryLease(length + piece*int64(g.s.Scheme.K+1))
	if l == nil {
		return false, nil
	}
	defer l.release()
	out, err := l.own(ctx, int(length))
	if err != nil {
		return false, err
	}
	whole, all := target{t.index, 0, out}, *g
	all.free, all.buffers = nil, l
	if err := e.rebuildGroup(ctx, &all, []target{whole}, piece, nil); err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		return false, nil // the part was readable, but the rest of the chunks is not now
	}
	if crc.Sum(out) != g.s.Chunks[t.index].CRC {
		if err := e.rebuildWithout(ctx, &all, whole, piece); err != nil {
			return true, err
		}
	}
	copy(t.out, out[t.lo:])
	return true, nil
}

// CheckParity reads all chunks of a stripe and compares its parity with the parity computed
// from its data. It reports the parity chunks that differ although they, and all data, have
// their recorded checksums, and returns a bit for each. On error nothing is known: it could not
// read all chunks.
func (e *Engine) CheckParity(ctx context.Context, w *wire.Stripe) (wrong uint32, err error) {
	s, err := RecordFromWire(w)
	if err != nil || s.Scheme.IsCopies() || s.Scheme.M == 0 {
		return 0, err
	}
	if wrong, err = e.compareParity(ctx, s); err != nil {
		return 0, retry.Wrap("client.CheckParity", s.ID.String(), err)
	}
	for i := range s.Chunks {
		if wrong&(1<<i) != 0 {
			e.wrongParity(s, i)
		}
	}
	return wrong, nil
}

func (e *Engine) compareParity(ctx context.Context, s *Record) (wrong uint32, err error) {
	k, m := int(s.Scheme.K), int(s.Scheme.M)
	coder, err := e.coders.Get(s.Scheme)
	if err != nil {
		return 0, err
	}
	length := s.Scheme.ChunkLen(s.Length)
	piece := min(repairPiece, length)
	l, err := e.newLease(ctx, piece*int64(k+2*m))
	if err != nil {
		return 0, err
	}
	defer l.release()
	bufs, err := l.get(ctx, k+2*m, int(piece))
	if err != nil {
		return 0, err
	}
	sums := make([]uint32, k+m)
	for at := int64(0); at < length; at += piece {
		n := min(piece, length-at)
		parts := cut(bufs, n)
		if err := e.getAll(ctx, s, at, parts[:k+m]); err != nil {
			return 0, err
		}
		if err := coder.Encode(parts[:k], parts[k+m:]); err != nil {
			return 0, err
		}
		for i := range sums { // after the encoding: shows a bit that flipped before it
			sums[i] = crc.Update(sums[i], parts[i])
		}
		for i := k; i < k+m; i++ {
			if !bytes.Equal(parts[i], parts[i+m]) {
				wrong |= 1 << i
			}
		}
	}
	return wrong, recordedSums(s, sums)
}

// cut returns the first n bytes of each buffer.
func cut(bufs [][]byte, n int64) [][]byte {
	out := make([][]byte, len(bufs))
	for i := range bufs {
		out[i] = bufs[i][:n]
	}
	return out
}

// getAll reads the same range of the first chunks of a stripe.
func (e *Engine) getAll(ctx context.Context, s *Record, at int64, dst [][]byte) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range dst {
		g.Go(func() error { return e.getChunk(ctx, s, i, at, dst[i]) })
	}
	return g.Wait()
}

// recordedSums compares the checksums of the first chunks of a stripe with its record.
func recordedSums(s *Record, sums []uint32) error {
	for i, sum := range sums {
		if sum != s.Chunks[i].CRC {
			return &moraine.Error{Ref: fmt.Sprintf("%s/%d", s.ID, i), Kind: moraine.Corrupt,
				Err: fmt.Errorf("chunk has checksum %08x, the record has %08x", sum, s.Chunks[i].CRC)}
		}
	}
	return nil
}

// RecodeParity computes a parity chunk from the data of its stripe, which must all have their
// recorded checksums. It ignores the recorded checksum of the parity. sum is the checksum of
// the returned bytes. They are valid until the caller calls release, once.
func (e *Engine) RecodeParity(ctx context.Context, w *wire.Stripe, index int) (data []byte, sum uint32, release func(), err error) {
	fail := func(err error) ([]byte, uint32, func(), error) {
		return nil, 0, nil, retry.Wrap("client.RecodeParity", fmt.Sprintf("%s/%d", moraine.StripeID(w.GetId()), index), err)
	}
	s, err := RecordFromWire(w)
	if err != nil {
		return fail(err)
	}
	k, m := int(s.Scheme.K), int(s.Scheme.M)
	if s.Scheme.IsCopies() || index < k || index >= k+m {
		return fail(&moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("no parity chunk of %s", s.Scheme)})
	}
	coder, err := e.coders.Get(s.Scheme)
	if err != nil {
		return fail(err)
	}
	length := s.Scheme.ChunkLen(s.Length)
	piece := min(repairPiece, length)
	l, err := e.newLease(ctx, length+piece*int64(k+m+1))
	if err != nil {
		return fail(err)
	}
	out, sum, err := e.recode(ctx, l, s, &recoder{coder: coder, k: k, m: m, index: index, sums: make([]uint32, k)})
	if err != nil {
		l.release()
		return fail(err)
	}
	if sum != s.Chunks[index].CRC {
		e.metrics.ParityWrong.Inc()
		e.log.Error("parity encoded again", "stripe", s.ID, "index", index, "recorded", s.Chunks[index].CRC, "sum", sum)
	}
	return out, sum, l.release, nil
}

func (e *Engine) recode(ctx context.Context, l *lease, s *Record, r *recoder) ([]byte, uint32, error) {
	length := s.Scheme.ChunkLen(s.Length)
	piece := min(repairPiece, length)
	out, err := l.own(ctx, int(length))
	if err != nil {
		return nil, 0, err
	}
	bufs, err := l.get(ctx, r.k+r.m+1, int(piece))
	if err != nil {
		return nil, 0, err
	}
	for at := int64(0); at < length; at += piece {
		parts := cut(bufs, min(piece, length-at))
		if err := e.getAll(ctx, s, at, parts[:r.k]); err != nil {
			return nil, 0, err
		}
		if err := r.encode(parts); err != nil {
			return nil, 0, err
		}
		copy(out[at:], parts[r.index])
	}
	return out, r.made, r.check(s, out)
}
