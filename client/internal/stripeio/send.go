package stripeio

import (
	"context"
	"errors"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// SentStripe is a stripe whose chunks are all on chunkservers, ready to commit.
type SentStripe struct {
	Record    *wire.Stripe
	Ticket    *Ticket
	Crc       uint32 // of its bytes
	resubmits int    // how often it was resubmitted
}

// Sender puts the stripes of one file on chunkservers.
type Sender struct {
	Engine *Engine
	Inode  moraine.InodeID
	Key    GrantKey
	Level  moraine.Level
	// DeferFor is the step for which chunkservers put off the device writes at level memory; 0: none.
	DeferFor moraine.InodeID
}

// Send puts a stripe's bytes on chunkservers, under as many stripe numbers as necessary. That
// is one, unless the remaining devices require another scheme with shorter stripes. The
// stripe's ticket is t, or nil if it has none yet. On error all tickets are settled.
func (f *Sender) Send(ctx context.Context, st *Stripe, t *Ticket) ([]SentStripe, error) {
	for {
		if t == nil {
			var err error
			if t, err = f.Engine.Grants.Take(ctx, f.Key, f.Inode); err != nil {
				return nil, err
			}
		}
		if full := int64(t.Scheme.K) * f.Engine.ChunkBytes(t.Scheme); st.Length > full && !f.encoded(st, t) {
			return f.sendParts(ctx, st, t, full)
		}
		rec, err := f.sendOne(ctx, st, t)
		if err == nil {
			return []SentStripe{{Record: rec, Ticket: t, Crc: st.content}}, nil
		}
		f.Engine.Grants.Settle(t, false)
		t = nil
		if !errors.Is(err, errResubmit) {
			return nil, err
		}
	}
}

// encoded reports whether the stripe is encoded for the ticket's scheme.
func (f *Sender) encoded(st *Stripe, t *Ticket) bool { return st.sums != nil && st.scheme == t.Scheme }

// sendParts sends a stripe that is too long for its scheme in parts of at most full bytes.
func (f *Sender) sendParts(ctx context.Context, st *Stripe, t *Ticket, full int64) ([]SentStripe, error) {
	st.FreeParity()
	var sent []SentStripe
	for from := int64(0); from < st.Length; from += full {
		part := st.cut(from, min(from+full, st.Length))
		got, err := f.Send(ctx, part, t)
		part.Free()
		t = nil
		if err != nil {
			f.Release(sent)
			return nil, err
		}
		sent = append(sent, got...)
	}
	if now := sumOf(sent); st.summed && now != st.content {
		f.Release(sent)
		return nil, changedInMemory(st.content, now)
	}
	return sent, nil
}

// Release settles the tickets of stripes that will not be committed.
func (f *Sender) Release(sent []SentStripe) {
	for _, s := range sent {
		f.Engine.Grants.Settle(s.Ticket, false)
	}
}

// sendOne sends a stripe under one number.
func (f *Sender) sendOne(ctx context.Context, st *Stripe, t *Ticket) (*wire.Stripe, error) {
	place := t.placement
	full := int64(place.Scheme.K) * f.Engine.ChunkBytes(place.Scheme)
	if st.Length <= min(f.Engine.SmallBytes(), full-1) && !place.Scheme.IsCopies() {
		place = f.Engine.copiesOf(t)
	}
	if err := st.encode(ctx, f.Engine, place.Scheme, nil); err != nil {
		return nil, err
	}
	return f.Engine.putStripe(ctx, t, st, place, f.Level, f.DeferFor)
}

// copiesOf returns a placement of copies with the same protection as the ticket's scheme, on
// some of its devices. It uses as many different hosts as possible, and another choice for each
// stripe.
func (e *Engine) copiesOf(t *Ticket) placement {
	n, copies := len(t.devices), int(t.Scheme.M)+1
	var first, rest []moraine.DeviceID
	hosts := map[string]bool{}
	for i := range n {
		dev := t.devices[(i+int(uint64(t.stripe)%uint64(n)))%n]
		d, known := e.Topology.lookup(dev)
		if known && hosts[d.host] {
			rest = append(rest, dev)
			continue
		}
		hosts[d.host] = known
		first = append(first, dev)
	}
	return placement{Scheme: moraine.Copies(copies), devices: append(first, rest...)[:copies], protects: t.protects}
}

// ChunkBytes returns the length of the chunks of a full stripe. It is the
// configured one, or less if two such stripes would not fit into the memory.
func (e *Engine) ChunkBytes(scheme moraine.Scheme) int64 {
	fits := (e.Writes.size/2)/int64(scheme.Chunks()) - moraine.BlockSize
	return min(e.cfg.ChunkBytes, max(moraine.BlockSize, fits/moraine.BlockSize*moraine.BlockSize))
}

// SmallBytes returns the largest end of a file that is stored as copies.
func (e *Engine) SmallBytes() int64 { return min(moraine.SmallRemainder, e.cfg.ChunkBytes/2) }

// SendAgain is Send that begins again if the session expired meanwhile: the bytes are still in
// memory.
func (s *Sender) SendAgain(ctx context.Context, st *Stripe, t *Ticket) ([]SentStripe, error) {
	for try := 0; ; try++ {
		sent, err := s.Send(ctx, st, t)
		t = nil
		if err == nil && s.Engine.meta.Doubtful(s.Engine.meta.Current()) {
			// A commit is impossible now, and the session of the stripes may have ended when it
			// is possible again. Keep the bytes until that is known.
			_ = s.Engine.meta.Renew(ctx, false)
		}
		if err == nil && !s.Expired(sent) {
			return sent, nil
		}
		if err == nil {
			s.Release(sent)
			continue
		}
		if !retry.IsKind(err, moraine.SessionExpired) || ctx.Err() != nil {
			return nil, err
		}
		if err := s.Engine.meta.Renew(ctx, false); err != nil || !retry.Pause(ctx, s.Engine.clock, try) {
			return nil, retry.ContextErrorAfter(ctx, "put stripe", err)
		}
	}
}

// Expired reports whether the session of the stripes' grants has ended.
func (s *Sender) Expired(sent []SentStripe) bool {
	now := s.Engine.meta.Current()
	return slices.ContainsFunc(sent, func(s SentStripe) bool { return s.Ticket.Grant.Session != now })
}
