package stripeio

import (
	"context"
	"errors"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/transport/wire"
)

// rewrite puts pieces together into a stripe, and commits it in their place. It settles the
// ticket.
func (w *rewriter) rewrite(ctx context.Context, t *Ticket, part []Located) error {
	return w.put(ctx, t, part, func(ctx context.Context, sent []SentStripe) error {
		for _, p := range sent {
			if err := w.safe(wire.SchemeFromWire(p.Record.Scheme)); err != nil {
				return err
			}
		}
		_, err := w.commit(ctx, []packedFile{{inode: uint64(w.Inode), pieces: part}}, sent)
		if retry.IsKind(err, moraine.NotFound) {
			return errFileGone
		}
		return err
	})
}

// put puts pieces together into a stripe, and calls commit with what was sent. It settles the
// ticket.
func (w *rewriter) put(ctx context.Context, t *Ticket, part []Located, commit func(context.Context, []SentStripe) error) error {
	var length int64
	for _, e := range part {
		length += e.Length
	}
	giveUp := func(err error) error {
		w.Engine.Grants.Settle(t, false)
		return err
	}
	if err := w.pace(ctx, length); err != nil {
		return giveUp(err)
	}
	// A part has a time limit, so that one that hangs does not delay the others.
	ctx, cancel := context.WithTimeout(ctx, w.Engine.cfg.Patience)
	defer cancel()
	// All at once, so that nothing waits while it has some.
	need := length + int64(t.Scheme.M)*(t.Scheme.ChunkLen(length)+moraine.BlockSize)
	if err := w.Engine.Writes.Acquire(ctx, need); err != nil {
		return giveUp(err)
	}
	defer w.Engine.Writes.Release(need)
	st := &Stripe{}
	defer st.Free()
	if err := w.gather(ctx, st, part, length); err != nil {
		return giveUp(err)
	}
	sent, err := w.Send(ctx, st, t)
	if err != nil {
		return err
	}
	if err := commit(ctx, sent); err != nil {
		w.Release(sent)
		return err
	}
	for _, p := range sent {
		w.Engine.Grants.Settle(p.Ticket, true)
	}
	return nil
}

// gather reads pieces into a stripe, one after the other.
func (w *rewriter) gather(ctx context.Context, st *Stripe, part []Located, length int64) error {
	var left []byte // unused part of the last buffer
	for _, e := range part {
		e, err := w.renewed(ctx, e)
		if err != nil {
			return err
		}
		for e.Length > 0 {
			if len(left) == 0 {
				buf, err := w.Engine.Pool.Get(ctx, int(min(length-st.Length, w.Engine.cfg.ChunkBytes, bufpool.MaxSize)))
				if err != nil {
					return err
				}
				left = buf.Bytes()
				st.segs = append(st.segs, segment{b: left, buf: buf})
				st.Length += int64(len(left))
			}
			n := min(e.Length, int64(len(left)))
			at := e.Offset + n
			if _, err := w.Engine.ReadLocated(ctx, []Located{e.to(at)}, left[:n], e.Offset, false); err != nil {
				return &unreadError{e.Stripe, err}
			}
			left = left[n:]
			if n == e.Length {
				break
			}
			e = e.from(at)
		}
	}
	if st.Length != length || len(left) != 0 {
		return errors.New("the pieces of a stripe do not add up")
	}
	return nil
}

// commit commits sent stripes with the bytes of the files in place of their old extents. It
// returns how many files the service changed.
func (w *rewriter) commit(ctx context.Context, files []packedFile, sent []SentStripe) (changed int64, err error) {
	op := &wire.CommitRewrite{Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch()}
	for _, p := range sent {
		op.Stripes = append(op.Stripes, p.Record)
		op.Promised = max(op.Promised, p.Ticket.Grant.Promised())
	}
	in, at := 0, uint64(0) // position in the sent stripes
	for _, f := range files {
		p := &wire.RewrittenFile{Inode: f.inode}
		for _, e := range f.pieces {
			p.Was = append(p.Was, wireExtent(e.Extent))
			for off, end := uint64(e.Offset), uint64(e.End()); off < end; {
				if at == sent[in].Record.Length {
					in, at = in+1, 0
				}
				n := min(end-off, sent[in].Record.Length-at)
				p.Extents = appendExtent(p.Extents, &wire.Extent{Offset: off, Length: n, Stripe: sent[in].Record.Id, StripeOffset: at})
				off, at = off+n, at+n
			}
		}
		op.Files = append(op.Files, p)
	}
	resp, err := w.Engine.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: op}}, sent[0].Ticket.Grant.Session)
	for _, f := range files {
		if slices.Contains(resp.GetRewrite().GetRewritten(), f.inode) {
			changed++
			for _, e := range f.pieces {
				w.done.Bytes += e.Length
			}
		}
	}
	return changed, err
}

func wireExtent(e moraine.Extent) *wire.Extent {
	return &wire.Extent{Offset: uint64(e.Offset), Length: uint64(e.Length), Stripe: uint64(e.Stripe), StripeOffset: uint64(e.StripeOffset), Inline: uint64(e.Inline)}
}

// appendExtent appends an extent, or extends the last one by it.
func appendExtent(exts []*wire.Extent, e *wire.Extent) []*wire.Extent {
	if n := len(exts); n > 0 {
		if l := exts[n-1]; l.Stripe == e.Stripe && l.Offset+l.Length == e.Offset && l.StripeOffset+l.Length == e.StripeOffset {
			l.Length += e.Length
			return exts
		}
	}
	return append(exts, e)
}
