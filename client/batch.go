package client

import (
	"math"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/bufpool"
)

// batch has the bytes of one stripe of a file that is open for writing. They
// are ranges of the file in any order, in the batch's own memory. While the
// batch is open, writes add bytes to it or overwrite bytes in it. seal puts the
// ranges in order of offset, so that writes that arrive out of order make one
// extent.
type batch struct {
	// The holder of the writer's gate fills these fields:
	bufs    []*bufpool.Buffer
	used    int   // bytes of the last buffer
	length  int64 // bytes written to it in all, overwritten ones included
	pieces  int   // spans made of its bytes
	charged int64 // bytes taken from the client's budget
	ticket  *stripeio.Ticket
	limit   int64 // upper bound of length, if the batch has a ticket
	tail    int64 // offset in the file at which the last write ended
	scatter bool  // takes small writes that continue no run of writes

	// Guarded by the content's mutex:
	state   batchState
	seq     int // place in the order of sending, from 1
	born    time.Time
	extents []moraine.Extent      // ranges of the file, by offset; StripeOffset counts in the bytes sent
	err     error                 // why it failed
	sent    []stripeio.SentStripe // after batchPut: where the bytes are
	stripes []*stripeio.Record

	st *stripeio.Stripe // being sent; the sender owns it
	// appended marks bytes that the commit puts at the end of the file, wherever that is then.
	// The caller waits for the commit.
	appended bool
	at       int64 // after the commit: the offset of the appended bytes
	// alone is set after the service refused a commit of several batches: another batch may be
	// the cause.
	alone bool
	// small marks a batch whose commit brings the whole content of the file (contentsmall.go).
	// bytes are its bytes, outside the client's budget: MaxInline of them at most.
	small bool
	bytes []byte
	// asked reports whether the client sent a commit of the batch. If so, a caller that abandons
	// the batch cannot know whether the service applied the commit.
	asked bool
}

type batchState uint8

const (
	batchOpen    batchState = iota
	batchSending            // its bytes no longer change
	batchPut                // its bytes are on chunkservers, and its memory is released; or it is small
	batchFailed             // its bytes are lost
	batchDone               // committed, or nothing of it was left to commit
)

// own returns how much memory the batch has.
func (b *batch) own() int64 {
	var n int64
	for _, buf := range b.bufs {
		n += int64(len(buf.Bytes()))
	}
	return n
}

// room returns the unused part of the last buffer.
func (b *batch) room() []byte {
	if len(b.bufs) == 0 {
		return nil
	}
	return b.bufs[len(b.bufs)-1].Bytes()[b.used:]
}

// full reports whether a batch limited to limit bytes can take nothing further.
func (b *batch) full(limit int64) bool { return b.length >= limit || b.pieces >= maxPieces }

// maxPieces bounds the ranges of one batch, and so the extents of one stripe.
const maxPieces = 128

// near reports whether a write at off belongs to the batch's run of writes. The writes of a
// mount arrive slightly out of order.
func (b *batch) near(off, reach int64) bool {
	return !b.scatter && off >= b.tail-reach && off <= b.tail+reach
}

// seal puts the live bytes of the batch, in order, into a stripe to send, and records which
// ranges of the file they are. The caller holds the content's mutex.
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

// cutFrom removes the ranges from size on. The caller holds the content's mutex.
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

// locate returns where the batch's bytes [off, off+n) are, as extents that start at offset at
// of the file. The batch must be in state batchPut.
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

// placed records where the batch's bytes are. The caller holds the content's mutex.
func (b *batch) placed(sent []stripeio.SentStripe) {
	b.sent, b.stripes = sent, nil
	for _, s := range sent {
		rec, bad := stripeio.RecordFromWire(s.Record)
		if bad != nil { // this client encoded it
			panic(bad)
		}
		rec.Grant = s.Ticket.Grant
		b.stripes = append(b.stripes, rec)
	}
}

// free releases the memory and returns how many bytes of the budget it was charged.
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
