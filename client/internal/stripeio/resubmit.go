package stripeio

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// ResubmitTries is how often what the service refuses to commit is put anew.
const ResubmitTries = 3

// MostResubmits returns how often the one of some stripes was put anew that was most often.
func MostResubmits(sent []SentStripe) int {
	most := 0
	for i := range sent {
		most = max(most, sent[i].resubmits)
	}
	return most
}

// Resubmit puts the bytes of stripes in place once more, under other numbers, after the
// service has refused to commit them as Stale: a device that holds them went out, or lost
// its memory, since they were put. The bytes are not held here any more, but read back
// from the chunks that are left; what is read is held against its sums as any read is, and
// what is put against the sum of what was put before. By the scheme that the devices of
// now allow they may be more stripes than before. Each stripe has the client's patience.
// The tickets of sent are settled, also on error.
//
// The refusal was the first answer to the commit, so that nothing of it was applied, and
// nothing is there twice.
func (f *Sender) Resubmit(ctx context.Context, sent []SentStripe,
	send func(context.Context, *Stripe, *Ticket) ([]SentStripe, error)) ([]SentStripe, error) {
	// No more is taken from their grants, whose places were chosen before. They do not end
	// before what was put under them is read: from then on it is garbage.
	for i := range sent {
		f.Engine.Grants.retire(sent[i].Ticket)
	}
	f.Engine.Topology.doubt()
	var out []SentStripe
	for i := range sent {
		again, err := f.resubmitOne(ctx, &sent[i], send)
		f.Release(sent[i : i+1])
		if err != nil {
			f.Release(sent[i+1:])
			f.Release(out)
			return nil, err
		}
		out = append(out, again...)
	}
	return out, nil
}

func (f *Sender) resubmitOne(ctx context.Context, old *SentStripe,
	send func(context.Context, *Stripe, *Ticket) ([]SentStripe, error)) ([]SentStripe, error) {
	s, err := RecordFromWire(old.Record)
	if err != nil {
		return nil, err
	}
	s.Grant = old.Ticket.Grant
	// One at a time, beside the budget of what is written, which may all be held by those
	// who wait for this commit. Those before it have their patience each.
	if err := f.Engine.resubmits.Lock(ctx); err != nil {
		return nil, err
	}
	defer f.Engine.resubmits.Unlock()
	ctx, cancel := context.WithTimeout(ctx, f.Engine.cfg.Patience)
	defer cancel()
	st := &Stripe{}
	defer st.Free()
	if err := f.readBack(ctx, s, st); err != nil {
		return nil, err
	}
	f.Engine.metrics.StripesResubmitted.Inc()
	sent, err := send(ctx, st, nil)
	if err != nil {
		return nil, err
	}
	for i := range sent {
		sent[i].resubmits = old.resubmits + 1
	}
	if err := sameBytes(old, sent); err != nil {
		f.Release(sent)
		return nil, err
	}
	return sent, nil
}

// sameBytes holds what was put anew against the sum of what was written: the sums of
// chunks, which what was read was held against, end where they were put together.
func sameBytes(old *SentStripe, sent []SentStripe) error {
	sum := sumOf(sent)
	if sum == old.Crc {
		return nil
	}
	return &moraine.Error{Op: "put anew", Ref: moraine.StripeID(old.Record.Id).String(), Kind: moraine.Corrupt,
		Err: fmt.Errorf("its bytes have the sum %08x, and had %08x when they were written", sum, old.Crc)}
}

// sumOf returns the sum of the bytes of stripes that follow each other.
func sumOf(sent []SentStripe) (sum uint32) {
	for i := range sent {
		sum = crc.Combine(sum, sent[i].Crc, int64(sent[i].Record.Length))
	}
	return sum
}

// readBack fills st with the bytes of a stripe that was put.
func (f *Sender) readBack(ctx context.Context, s *Record, st *Stripe) error {
	all := []Located{{Record: s, Extent: moraine.Extent{Length: s.Length, Stripe: s.ID}}}
	for st.Length < s.Length {
		n := min(s.Length-st.Length, f.Engine.cfg.ChunkBytes)
		buf, err := f.Engine.Pool.Get(ctx, int(n))
		if err != nil {
			return err
		}
		part := buf.Bytes()[:n]
		_, err = f.Engine.ReadLocated(ctx, []Located{all[0].part(st.Length, n)}, part, st.Length, true)
		if err != nil {
			buf.Release()
			return err
		}
		st.segs = append(st.segs, segment{b: part, buf: buf})
		st.Length += n
	}
	return nil
}

// part returns the extent of n bytes from off on of one that begins at 0.
func (e Located) part(off, n int64) Located {
	e.Offset, e.StripeOffset, e.Length = off, off, n
	return e
}

// CannotResubmit is the error of bytes that were put, and neither committed nor put anew.
// Room that is missing says so, and so do other bytes and a caller who gave up; else it is
// an input/output error, whatever ended it. The kinds of what ended it are not passed on:
// who hears Stale or NotFound would look for another file, or try once more.
func CannotResubmit(refused, err error) error {
	kind := moraine.IOError
	switch k := moraine.KindOf(err); k {
	case moraine.NoSpace, moraine.QuotaExceeded, moraine.Corrupt, moraine.Canceled:
		kind = k
	}
	return &moraine.Error{Op: "commit", Kind: kind, Err: fmt.Errorf(
		"devices that took what was written went out, or lost their memory, before it was committed (%v), and it could not be put on others: %v", refused, err)}
}

// RefusedAgain is the error of bytes that were put anew as often as is tried.
func RefusedAgain(refused error) error {
	return &moraine.Error{Op: "commit", Kind: moraine.IOError, Err: fmt.Errorf(
		"what was written was put %d times, and each time devices that took it went out, or lost their memory, before it was committed: %v", ResubmitTries+1, refused)}
}
