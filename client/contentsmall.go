package client

import (
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// The whole content of a small file goes to the metadata, in the commit itself, if the client knows
// all of it. It then needs no stripe: a small batch is ready to commit at once. Whatever stands
// against that when its turn comes, the batch is sent as a stripe instead, and the service lays that
// over what it has.

// sendAll sends all open batches, or makes them ready to commit. The caller holds the gate.
func (ct *content) sendAll(ctx context.Context) error {
	ct.mu.Lock()
	ct.gatherSmall()
	ct.mu.Unlock()
	return ct.launchAll(ctx)
}

// gatherSmall makes one small batch of all open batches, if the file is small, and releases their
// memory. The caller holds the gate and the mutex.
func (ct *content) gatherSmall() {
	if !ct.isSmall() {
		return
	}
	ct.seq++
	to := &batch{small: true, state: batchPut, seq: ct.seq, born: ct.open[0].born}
	live := slices.Clone(ct.spans)
	ct.spans.drop(func(b *batch) bool { return b.state == batchOpen })
	for _, s := range live {
		if s.b.state != batchOpen {
			continue
		}
		at := len(to.bytes)
		to.bytes = append(to.bytes, s.mem...)
		to.extents = append(to.extents, moraine.Extent{Offset: s.off, Length: s.end - s.off, StripeOffset: int64(at)})
	}
	for _, e := range to.extents { // bytes stay where they are from here on
		ct.spans.put(span{off: e.Offset, end: e.End(), b: to, at: e.StripeOffset, mem: to.bytes[e.StripeOffset:][:e.Length:e.Length]})
	}
	for _, b := range ct.open {
		b.state = batchDone
		if to.born.After(b.born) {
			to.born = b.born
		}
		ct.giveBack(b)
	}
	ct.open = nil
	ct.queue = append(ct.queue, to)
}

// isSmall reports whether the open batches can be a small one: the file is small, and all of it is
// in them, in earlier small batches, or in the metadata. The caller holds the gate and the mutex.
func (ct *content) isSmall() bool {
	if len(ct.open) == 0 || ct.doubted || ct.sender.Key.Scheme.K != 0 || ct.size() > ct.c.cfg.InlineBytes {
		return false
	}
	if slices.ContainsFunc(ct.open, func(b *batch) bool { return b.ticket != nil || b.appended }) ||
		slices.ContainsFunc(ct.queue, func(b *batch) bool { return !b.small }) {
		return false
	}
	return ct.base.Stored == ct.base.Inline || covers(ct.spans, int64(ct.base.Size))
}

// covers reports whether spans have all bytes up to size.
func covers(l spans, size int64) bool {
	at := int64(0)
	for _, s := range l {
		if s.off > at {
			break
		}
		at = s.end
	}
	return at >= size
}

// commitSmall commits a small batch: with what the metadata has, it is the whole content. The caller
// holds publish.
func (q *committer) commitSmall(b *batch) {
	content, after := q.wholeOf(b)
	if content == nil {
		q.sendAsStripe(b)
		return
	}
	s := q.c.meta.Current()
	op := &wire.Commit{Inode: uint64(q.sender.Inode), ExpectGeneration: after.generation, Mode: wire.CommitMode_COMMIT_MODE_REPLACE,
		Content: content, Final: after.last}
	var reply *wire.CommitReply
	err := q.c.locks.Check(q.sender.Inode, s.Id)
	if err == nil {
		reply, err = q.commitContent(op, s)
	}
	if needsStripes(err) {
		q.sendAsStripe(b)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		q.commitFailed([]*batch{b}, err)
	} else {
		q.committed([]*batch{b}, op, reply.Attr)
		if q.base.Generation == reply.Attr.Generation {
			q.extents.SeedInline(content)
		}
	}
	q.prune()
}

// commitContent sends the commit of a small batch, or leaves it to the desk to send it.
func (q *committer) commitContent(op *wire.Commit, s *session.Session) (*wire.CommitReply, error) {
	q.mu.Lock()
	local := q.local
	q.mu.Unlock()
	if local {
		if resp, done, err := q.c.meta.Desk.Queue(q.life, op); done {
			return committedBy(resp, err)
		}
	}
	return q.commit(op, s)
}

// needsStripes reports whether the service refused content that it may take in stripes: the file
// changed, another session must send it, or the metadata keeps no more.
func needsStripes(err error) bool {
	switch {
	case err == nil:
		return false
	case retry.IsKind(err, moraine.Conflict), retry.IsKind(err, moraine.Stale), retry.IsKind(err, moraine.NoSpace),
		retry.IsKind(err, moraine.TooLarge), retry.IsKind(err, moraine.SessionExpired):
		return true
	}
	return false
}

// smallPlace is what the whole content of a small batch follows.
type smallPlace struct {
	generation uint64
	last       bool // no other writes wait
}

// wholeOf returns the content of the file with a batch over it; nil if the client cannot know all of
// it without reading stripes.
func (q *committer) wholeOf(b *batch) ([]byte, smallPlace) {
	q.mu.Lock()
	base, extents := q.base, q.extents
	var l spans
	for _, e := range b.extents {
		l = append(l, span{off: e.Offset, end: e.End(), at: e.StripeOffset})
	}
	place := smallPlace{base.Generation, len(q.queue) == 1 && len(q.open) == 0}
	doubted := q.doubted
	q.mu.Unlock()
	size := max(int64(base.Size), l.end())
	whole := covers(l, int64(base.Size))
	if len(l) == 0 || doubted || size > q.c.cfg.InlineBytes || !whole && base.Stored != base.Inline {
		return nil, place
	}
	content := make([]byte, size)
	if !whole && base.Inline > 0 {
		there := content[:base.Size]
		found, err := extents.Find(q.life, 0, int64(len(there)))
		if err == nil {
			err = stripeio.CopyInline(found, there)
		}
		if err != nil { // it has another generation by now
			return nil, place
		}
	}
	for _, s := range l {
		copy(content[s.off:s.end], b.bytes[s.at:])
	}
	return content, place
}

// sendAsStripe sends a small batch like any other.
func (q *committer) sendAsStripe(b *batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.small, b.asked = false, false
	if len(b.extents) == 0 { // all of it was truncated
		b.state = batchDone
		q.prune()
		return
	}
	b.state, b.st = batchSending, &stripeio.Stripe{}
	b.st.Lend(b.bytes)
	to := q.sender
	q.work.Go(func() {
		ctx, cancel := context.WithTimeout(q.life, q.c.cfg.Patience)
		defer cancel()
		sent, err := to.SendAgain(ctx, b.st, nil)
		q.arrived(b, sent, err)
	})
}
