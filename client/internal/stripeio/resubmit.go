package stripeio

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// ResubmitTries is how often the client resubmits a stripe whose commit is refused.
const ResubmitTries = 3

// MostResubmits returns the largest number of resubmits of any of the stripes.
func MostResubmits(sent []SentStripe) int {
	most := 0
	for i := range sent {
		most = max(most, sent[i].resubmits)
	}
	return most
}

// Resubmit writes the bytes of stripes again under other numbers, after the service refused
// their commit. Stale means that a device with their chunks went out, or lost its memory. The
// bytes are no longer in memory, so Resubmit reads them back from the remaining chunks. It
// verifies them as any read does, and compares the checksum of the new stripes with that of the
// old. With the scheme that the current devices allow there may be more stripes than before.
// Each stripe has the client's patience. The tickets of sent are settled, also on error.
//
// The refusal was the first answer to the commit, so the service applied nothing of it, and no
// bytes are committed twice.
func (f *Sender) Resubmit(ctx context.Context, sent []SentStripe,
	send func(context.Context, *Stripe, *Ticket) ([]SentStripe, error)) ([]SentStripe, error) {
	// Take nothing more from their grants, whose placements are outdated. The grants must not end
	// before their chunks are read: from then on these are garbage.
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
	// One at a time, outside the budget of writes, which callers that wait for this commit may
	// hold completely. Each stripe has its own patience.
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

// sameBytes compares the checksum of resubmitted stripes with that of the
// written bytes. The checksums of chunks, which the read verified, do not cover
// their concatenation.
func sameBytes(old *SentStripe, sent []SentStripe) error {
	sum := sumOf(sent)
	if sum == old.Crc {
		return nil
	}
	return &moraine.Error{Op: "resubmit", Ref: moraine.StripeID(old.Record.Id).String(), Kind: moraine.Corrupt,
		Err: fmt.Errorf("its bytes have checksum %08x, but had %08x when they were written", sum, old.Crc)}
}

// sumOf returns the checksum of the bytes of consecutive stripes.
func sumOf(sent []SentStripe) (sum uint32) {
	for i := range sent {
		sum = crc.Combine(sum, sent[i].Crc, int64(sent[i].Record.Length))
	}
	return sum
}

// readBack fills st with the bytes of a stripe on chunkservers.
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

// part returns the extent of n bytes from off on, of an extent that begins at 0.
func (e Located) part(off, n int64) Located {
	e.Offset, e.StripeOffset, e.Length = off, off, n
	return e
}

// CannotResubmit is the error of bytes that were neither committed nor resubmitted. It keeps
// the kinds for missing room, changed bytes and cancellation; otherwise it is IOError. It hides
// other kinds: a caller that gets Stale or NotFound would look for another file, or try again.
func CannotResubmit(refused, err error) error {
	kind := moraine.IOError
	switch k := moraine.KindOf(err); k {
	case moraine.NoSpace, moraine.QuotaExceeded, moraine.Corrupt, moraine.Canceled:
		kind = k
	}
	return &moraine.Error{Op: "commit", Kind: kind, Err: fmt.Errorf(
		"devices that received the bytes went out, or lost their memory, before the commit (%v), and the client could not write the bytes to other devices: %v", refused, err)}
}

// RefusedAgain is the error of bytes that were resubmitted ResubmitTries times.
func RefusedAgain(refused error) error {
	return &moraine.Error{Op: "commit", Kind: moraine.IOError, Err: fmt.Errorf(
		"the client wrote the bytes %d times, and each time a device that received them went out, or lost its memory, before the commit: %v", ResubmitTries+1, refused)}
}
