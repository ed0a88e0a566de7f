package client

import (
	"math"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/bufpool"
)

// batch is the bytes of one stripe of a file that is open for writing: ranges of
// the file in any order, in memory of its own. While it is open more comes to
// it, or over what it has. When it is sent, its ranges are put in order of
// offset, so that writes that came out of order make one extent.
type batch struct {
	// Of filling it; whoever holds the writer's gate:
	bufs    []*bufpool.Buffer
	used    int   // bytes of the last buffer
	length  int64 // bytes taken in all, those overwritten since too
	pieces  int   // spans that were made of it
	charged int64 // of the client's budget
	ticket  *stripeio.Ticket
	limit   int64 // of length, where it has a ticket
	tail    int64 // of the file: where the last write ended
	scatter bool  // takes the small writes that go on nowhere

	// Guarded by the content's mutex:
	state   batchState
	seq     int // in order of being sent, from 1
	born    time.Time
	extents []moraine.Extent      // of the file, by offset; StripeOffset counts in the bytes sent
	err     error                 // failed: why
	sent    []stripeio.SentStripe // put: where the bytes are
	stripes []*stripeio.Record

	st *stripeio.Stripe // being sent: the sender's
	// appended is set on bytes that go to the end of the file, wherever that is
	// when they are committed. The caller waits for them.
	appended bool
	at       int64 // committed: where that was
	// alone is set once a commit with others was refused: it may be for the others alone.
	alone bool
	// asked is whether the service was asked to commit it: whoever gives it up then does
	// not know whether it has.
	asked bool
}

type batchState uint8

const (
	batchOpen    batchState = iota
	batchSending            // its bytes do not change any more
	batchPut                // they are on chunkservers; the memory is given back
	batchFailed             // they are lost
	batchDone               // committed, or nothing was left of it
)

// own returns how much memory the batch has.
func (b *batch) own() int64 {
	var n int64
	for _, buf := range b.bufs {
		n += int64(len(buf.Bytes()))
	}
	return n
}

// room returns what is left of the last buffer.
func (b *batch) room() []byte {
	if len(b.bufs) == 0 {
		return nil
	}
	return b.bufs[len(b.bufs)-1].Bytes()[b.used:]
}

// full reports whether the batch takes no more, were it to end at limit bytes.
func (b *batch) full(limit int64) bool { return b.length >= limit || b.pieces >= maxPieces }

// maxPieces bounds the ranges of one batch, and so the extents of one stripe.
const maxPieces = 128

// near reports whether a write at off belongs to the batch's run of writes:
// those of a mount come a little out of order.
func (b *batch) near(off, reach int64) bool {
	return !b.scatter && off >= b.tail-reach && off <= b.tail+reach
}

// seal puts the live bytes of the batch, in order, into a stripe to send, and
// notes which ranges of the file they are. The content's mutex is held.
func (b *batch) seal(l spans) {
	b.st = &stripeio.Stripe{}
	for i := range l {
		s := &l[i]
		if s.b != b {
			continue
		}
		s.at = b.st.Length
		b.st.Lend(s.mem)
		if n := len(b.extents); n > 0 && b.extents[n-1].End() == s.off {
			b.extents[n-1].Length += s.end - s.off
			continue
		}
		b.extents = append(b.extents, moraine.Extent{Offset: s.off, Length: s.end - s.off, StripeOffset: s.at})
	}
}

// cutFrom takes away the ranges from size on. The content's mutex is held.
func (b *batch) cutFrom(size int64) {
	for i, e := range b.extents {
		if e.End() <= size {
			continue
		}
		if e.Offset < size {
			b.extents[i].Length = size - e.Offset
			i++
		}
		b.extents = b.extents[:i]
		return
	}
}

// locate returns where [off, off+n) of the batch's bytes is, as extents at
// offset at of a file. It must have been put.
func (b *batch) locate(off, n, at int64) []stripeio.Located {
	var out []stripeio.Located
	first := int64(0)
	for _, s := range b.stripes {
		lo, hi := max(off, first), min(off+n, first+s.Length)
		if lo < hi {
			out = append(out, stripeio.Located{Record: s, Extent: moraine.Extent{Offset: at + lo - off, Length: hi - lo,
				Stripe: s.ID, StripeOffset: lo - first}})
		}
		first += s.Length
	}
	return out
}

// placed notes where the batch's bytes are. The content's mutex is held.
func (b *batch) placed(sent []stripeio.SentStripe) {
	b.sent, b.stripes = sent, nil
	for _, s := range sent {
		rec, bad := stripeio.RecordFromWire(s.Record)
		if bad != nil { // we made it
			panic(bad)
		}
		rec.Grant = s.Ticket.Grant
		b.stripes = append(b.stripes, rec)
	}
}

// free gives the memory back and returns what it was charged.
func (b *batch) free() int64 {
	for _, buf := range b.bufs {
		buf.Release()
	}
	if b.st != nil {
		b.st.FreeParity()
	}
	n := b.charged
	b.bufs, b.st, b.charged = nil, nil, 0
	return n
}

// endOfFile is past every offset of a file.
const endOfFile = math.MaxInt64
