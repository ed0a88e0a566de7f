package client

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// sentStripe is a stripe whose chunks are all in place, to be committed.
type sentStripe struct {
	record    *wire.Stripe
	ticket    *ticket
	crc       uint32 // of its bytes
	resubmits int    // how often they were put anew
}

// sender puts the stripes of one file in place.
type sender struct {
	c     *Client
	inode moraine.InodeID
	key   grantKey
	level moraine.Level
}

// send puts a stripe's bytes in place, under as many stripe numbers as that
// takes: one, unless the devices that are left call for another scheme, whose
// stripes are shorter. t is its ticket, or nil if it has none yet. On error all
// tickets are settled.
func (f *sender) send(ctx context.Context, st *stripe, t *ticket) ([]sentStripe, error) {
	for {
		if t == nil {
			var err error
			if t, err = f.c.grants.take(ctx, f.key, f.inode); err != nil {
				return nil, err
			}
		}
		if full := int64(t.scheme.K) * f.c.chunkBytes(t.scheme); st.length > full && !f.encoded(st, t) {
			return f.sendParts(ctx, st, t, full)
		}
		rec, err := f.sendOne(ctx, st, t)
		if err == nil {
			return []sentStripe{{record: rec, ticket: t, crc: st.content}}, nil
		}
		f.c.grants.settle(t, false)
		t = nil
		if !errors.Is(err, errResubmit) {
			return nil, err
		}
	}
}

// encoded reports whether the stripe is ready for the ticket as it is.
func (f *sender) encoded(st *stripe, t *ticket) bool { return st.sums != nil && st.scheme == t.scheme }

// sendParts sends a stripe that is too long for its scheme in parts of at most
// full bytes.
func (f *sender) sendParts(ctx context.Context, st *stripe, t *ticket, full int64) ([]sentStripe, error) {
	st.freeParity()
	var sent []sentStripe
	for from := int64(0); from < st.length; from += full {
		part := st.cut(from, min(from+full, st.length))
		got, err := f.send(ctx, part, t)
		part.free()
		t = nil
		if err != nil {
			f.release(sent)
			return nil, err
		}
		sent = append(sent, got...)
	}
	if now := sumOf(sent); st.summed && now != st.content {
		f.release(sent)
		return nil, changedInMemory(st.content, now)
	}
	return sent, nil
}

// release settles the tickets of stripes that will not be committed.
func (f *sender) release(sent []sentStripe) {
	for _, s := range sent {
		f.c.grants.settle(s.ticket, false)
	}
}

// sendOne sends a stripe under one number.
func (f *sender) sendOne(ctx context.Context, st *stripe, t *ticket) (*wire.Stripe, error) {
	place := t.placement
	full := int64(place.scheme.K) * f.c.chunkBytes(place.scheme)
	if st.length <= min(f.c.smallBytes(), full-1) && !place.scheme.IsCopies() {
		place = f.c.copiesOf(t)
	}
	if err := st.encode(ctx, f.c, place.scheme, nil); err != nil {
		return nil, err
	}
	return f.c.putStripe(ctx, t, st, place, f.level)
}

// copiesOf returns a placement of copies that survives what the ticket's scheme
// does, on some of its devices: of as many hosts as there are, a different
// choice for each stripe.
func (c *Client) copiesOf(t *ticket) placement {
	n, copies := len(t.devices), int(t.scheme.M)+1
	var first, rest []moraine.DeviceID
	hosts := map[string]bool{}
	for i := range n {
		dev := t.devices[(i+int(uint64(t.stripe)%uint64(n)))%n]
		d, known := c.topology.lookup(dev)
		if known && hosts[d.host] {
			rest = append(rest, dev)
			continue
		}
		hosts[d.host] = known
		first = append(first, dev)
	}
	return placement{scheme: moraine.Copies(copies), devices: append(first, rest...)[:copies], protects: t.protects}
}
