package client

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// resubmitTries is how often what the service refuses to commit is put anew.
const resubmitTries = 3

// mostResubmits returns how often the one of some stripes was put anew that was most often.
func mostResubmits(sent []sentStripe) int {
	most := 0
	for i := range sent {
		most = max(most, sent[i].resubmits)
	}
	return most
}

// resubmit puts the bytes of stripes in place once more, under other numbers, after the
// service has refused to commit them as Stale: a device that holds them went out, or lost
// its memory, since they were put. The bytes are not held here any more, but read back
// from the chunks that are left; what is read is held against its sums as any read is, and
// what is put against the sum of what was put before. By the scheme that the devices of
// now allow they may be more stripes than before. Each stripe has the client's patience.
// The tickets of sent are settled, also on error.
//
// The refusal was the first answer to the commit, so that nothing of it was applied, and
// nothing is there twice.
func (f *sender) resubmit(ctx context.Context, sent []sentStripe,
	send func(context.Context, *stripe, *ticket) ([]sentStripe, error)) ([]sentStripe, error) {
	// No more is taken from their grants, whose places were chosen before. They do not end
	// before what was put under them is read: from then on it is garbage.
	for i := range sent {
		f.c.grants.retire(sent[i].ticket)
	}
	f.c.topology.doubt()
	var out []sentStripe
	for i := range sent {
		again, err := f.resubmitOne(ctx, &sent[i], send)
		f.release(sent[i : i+1])
		if err != nil {
			f.release(sent[i+1:])
			f.release(out)
			return nil, err
		}
		out = append(out, again...)
	}
	return out, nil
}

func (f *sender) resubmitOne(ctx context.Context, old *sentStripe,
	send func(context.Context, *stripe, *ticket) ([]sentStripe, error)) ([]sentStripe, error) {
	s, err := stripeFromWire(old.record)
	if err != nil {
		return nil, err
	}
	s.grant = old.ticket.grant
	// One at a time, beside the budget of what is written, which may all be held by those
	// who wait for this commit. Those before it have their patience each.
	if err := f.c.resubmits.lock(ctx); err != nil {
		return nil, err
	}
	defer f.c.resubmits.unlock()
	ctx, cancel := context.WithTimeout(ctx, f.c.cfg.Patience)
	defer cancel()
	st := &stripe{}
	defer st.free()
	if err := f.readBack(ctx, s, st); err != nil {
		return nil, err
	}
	f.c.metrics.StripesResubmitted.Inc()
	sent, err := send(ctx, st, nil)
	if err != nil {
		return nil, err
	}
	for i := range sent {
		sent[i].resubmits = old.resubmits + 1
	}
	if err := sameBytes(old, sent); err != nil {
		f.release(sent)
		return nil, err
	}
	return sent, nil
}

// sameBytes holds what was put anew against the sum of what was written: the sums of
// chunks, which what was read was held against, end where they were put together.
func sameBytes(old *sentStripe, sent []sentStripe) error {
	sum := sumOf(sent)
	if sum == old.crc {
		return nil
	}
	return &moraine.Error{Op: "put anew", Ref: moraine.StripeID(old.record.Id).String(), Kind: moraine.Corrupt,
		Err: fmt.Errorf("its bytes have the sum %08x, and had %08x when they were written", sum, old.crc)}
}

// sumOf returns the sum of the bytes of stripes that follow each other.
func sumOf(sent []sentStripe) (sum uint32) {
	for i := range sent {
		sum = crc.Combine(sum, sent[i].crc, int64(sent[i].record.Length))
	}
	return sum
}

// readBack fills st with the bytes of a stripe that was put.
func (f *sender) readBack(ctx context.Context, s *stripeRecord, st *stripe) error {
	all := []located{{stripe: s, Extent: moraine.Extent{Length: s.Length, Stripe: s.ID}}}
	for st.length < s.Length {
		n := min(s.Length-st.length, f.c.cfg.ChunkBytes)
		buf, err := f.c.pool.Get(ctx, int(n))
		if err != nil {
			return err
		}
		part := buf.Bytes()[:n]
		_, err = f.c.readLocated(ctx, []located{all[0].part(st.length, n)}, part, st.length, true)
		if err != nil {
			buf.Release()
			return err
		}
		st.segs = append(st.segs, segment{b: part, buf: buf})
		st.length += n
	}
	return nil
}

// part returns the extent of n bytes from off on of one that begins at 0.
func (e located) part(off, n int64) located {
	e.Offset, e.StripeOffset, e.Length = off, off, n
	return e
}

// cannotResubmit is the error of bytes that were put, and neither committed nor put anew.
// Room that is missing says so, and so do other bytes and a caller who gave up; else it is
// an input/output error, whatever ended it. The kinds of what ended it are not passed on:
// who hears Stale or NotFound would look for another file, or try once more.
func cannotResubmit(refused, err error) error {
	kind := moraine.IOError
	switch k := moraine.KindOf(err); k {
	case moraine.NoSpace, moraine.QuotaExceeded, moraine.Corrupt, moraine.Canceled:
		kind = k
	}
	return &moraine.Error{Op: "commit", Kind: kind, Err: fmt.Errorf(
		"devices that took what was written went out, or lost their memory, before it was committed (%v), and it could not be put on others: %v", refused, err)}
}

// refusedAgain is the error of bytes that were put anew as often as is tried.
func refusedAgain(refused error) error {
	return &moraine.Error{Op: "commit", Kind: moraine.IOError, Err: fmt.Errorf(
		"what was written was put %d times, and each time devices that took it went out, or lost their memory, before it was committed: %v", resubmitTries+1, refused)}
}
