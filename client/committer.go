package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// committer commits the sent batches of an open file, in the order in which they were sent. A later
// batch overwrites an earlier one where both have bytes. One goroutine at a time commits; it runs
// while the first batch of the queue is ready.
type committer struct {
	fileState
	// life ends with the last handle. Background sends and commits run under it.
	life context.Context
	work sync.WaitGroup // the goroutines that send and commit

	publish stripeio.Turn

	// Guarded by mu:
	queue   []*batch // sent and not committed, in order
	seq     int      // of the last batch sent
	wanted  int      // number of the last batch that is to be committed
	running bool     // commitWanted runs
	changed chan struct{}
	bare    int // commits at level memory without protection that may not be at nvme yet
	// local says that nobody waits until the service has the content of a small file: all handles are of level local.
	local bool
}

// signal wakes the goroutines that wait for a batch to change state. The caller holds the
// mutex.
func (q *committer) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// cutFrom drops written bytes past size. The caller holds the mutex.
func (q *committer) cutFrom(size int64) {
	q.spans.cut(size, endOfFile)
	for _, b := range q.queue {
		if !b.appended {
			b.cutFrom(size)
		}
	}
}

// arrived records the result of sending a batch, and releases its memory.
func (q *committer) arrived(b *batch, sent []stripeio.SentStripe, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case b.state == batchFailed: // by withdraw
		q.sender.Release(sent)
	case err == nil:
		b.placed(sent)
		b.state = batchPut
		for i := range q.spans {
			if q.spans[i].b == b {
				q.spans[i].mem = nil
			}
		}
	default:
		q.fail(b, err)
	}
	q.c.io.Writes.Release(b.free())
	q.prune()
	if q.tooMany() {
		q.wanted = q.seq
	}
	q.kick()
	q.signal()
}

// prune removes ended batches from the queue. The caller holds the mutex.
func (q *committer) prune() {
	q.queue = slices.DeleteFunc(q.queue, func(b *batch) bool { return b.state == batchFailed || b.state == batchDone })
}

// doneUpTo returns the number of the last batch such that it and all earlier ones have ended.
// The caller holds the mutex.
func (q *committer) doneUpTo() int {
	if len(q.queue) == 0 {
		return q.seq
	}
	return q.queue[0].seq - 1
}

// tooMany reports whether enough batches are on chunkservers for a commit of the usual size.
// The caller holds the mutex.
func (q *committer) tooMany() bool {
	records, extents := 0, 0
	for _, b := range q.queue {
		if b.state != batchPut {
			return false
		}
		records += b.records()
		extents += len(b.extents)
		if records > maxCommitRecords/2 || extents > moraine.MaxCommitExtents/2 {
			return true
		}
	}
	return false
}

// records returns about how many records of the state the commit of a batch touches.
func (b *batch) records() int {
	n := 2 * len(b.extents)
	for _, s := range b.sent {
		n += 3 + len(s.Record.Chunks)
	}
	return n
}

// resubmits returns how often the client resubmitted the batch. It must be in state batchPut.
func (b *batch) resubmits() int { return stripeio.MostResubmits(b.sent) }

// awaitCommitted returns when all that was sent is committed, or has failed. Timeout: no batch got
// any further for twice the client's patience.
func (q *committer) awaitCommitted(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	target := q.seq
	q.wanted = max(q.wanted, target)
	q.kick()
	for q.doneUpTo() < target {
		changed := q.changed
		q.mu.Unlock()
		err := q.c.io.Limits.Commits.Wait(ctx, func(ctx context.Context) error {
			select {
			case <-changed:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		q.mu.Lock()
		if err != nil {
			return retry.Wrap("flush", "", err)
		}
	}
	return nil
}

// kick starts commitWanted if the first batch is ready to commit. The caller holds the mutex.
func (q *committer) kick() {
	if q.running || !q.ready() {
		return
	}
	q.running = true
	q.work.Go(q.commitWanted)
}

func (q *committer) ready() bool {
	return len(q.queue) > 0 && q.queue[0].state == batchPut && q.queue[0].seq <= q.wanted && q.life.Err() == nil
}

// commitWanted commits batches as long as the first one is ready.
func (q *committer) commitWanted() {
	for {
		if err := q.publish.Lock(q.life); err == nil {
			q.commitNext()
			q.publish.Unlock()
		}
		q.mu.Lock()
		q.signal()
		if !q.ready() {
			q.running = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
	}
}

// commitNext commits the first batches of the queue, as many as one log entry takes, or
// resubmits them. The caller holds publish.
func (q *committer) commitNext() {
	q.mu.Lock()
	q.dropExpired()
	if !q.ready() {
		q.mu.Unlock()
		return
	}
	if b := q.queue[0]; b.small {
		b.asked = true
		q.mu.Unlock()
		q.commitSmall(b)
		return
	}
	set, op := q.nextCommit()
	for _, b := range set {
		b.asked = true
	}
	q.mu.Unlock()
	var reply *wire.CommitReply
	var err error
	if len(op.Extents) > 0 {
		s := set[0].sent[0].Ticket.Grant.Session
		if err = q.c.locks.Check(q.sender.Inode, s.Id); err == nil {
			reply, err = q.commit(op, s)
		}
		if retry.IsKind(err, moraine.Stale) {
			if err = q.resubmitBatches(set, err); err == nil {
				return // with a smaller scheme they may be more than one entry takes
			}
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(set) > 1 && (retry.IsKind(err, moraine.QuotaExceeded) || retry.IsKind(err, moraine.TooLarge)):
		for _, b := range set { // the service refused all of it
			b.alone = true
		}
	case err != nil:
		q.commitFailed(set, err)
	default:
		q.sawProtection(op, reply)
		q.committed(set, op, reply.GetAttr())
	}
	q.prune()
}

// resubmitBatches resubmits batches whose commit was refused because devices went out, up to a
// limit. The caller holds publish, so that the extents do not change.
func (q *committer) resubmitBatches(set []*batch, refused error) error {
	if set[0].resubmits() >= stripeio.ResubmitTries { // the others have as many
		return stripeio.RefusedAgain(refused)
	}
	q.c.log.Info("commit refused; resubmitting its stripes", "inode", q.sender.Inode, "err", refused)
	for _, b := range set {
		q.mu.Lock()
		old, to := b.sent, q.sender
		b.sent = nil
		q.mu.Unlock()
		sent, err := to.Resubmit(q.life, old, to.SendAgain)
		if err != nil {
			return stripeio.CannotResubmit(refused, err)
		}
		q.mu.Lock()
		b.placed(sent)
		q.mu.Unlock()
	}
	return nil
}

// commit commits stripes that were put under s.
func (q *committer) commit(op *wire.Commit, s *session.Session) (*wire.CommitReply, error) {
	resp, err := q.c.meta.DoUnder(q.life, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}, s)
	if retry.IsKind(err, moraine.TooLarge) && op.Mode == wire.CommitMode_COMMIT_MODE_OVERLAY {
		if merr := q.mergeTables(op, s); merr != nil {
			return nil, merr
		}
		resp, err = q.c.meta.DoUnder(q.life, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}, s)
	}
	return committedBy(resp, err)
}

// committedBy is the reply to a commit.
func committedBy(resp *wire.MetaResponse, err error) (*wire.CommitReply, error) {
	if err != nil {
		return nil, err
	}
	if resp.GetCommit().GetAttr() == nil {
		return nil, retry.BadReply("commit")
	}
	return resp.GetCommit(), nil
}

// nextCommit returns the batches of the next commit, and the commit. If they overlap the later
// one wins. An appended batch goes alone, and so does one that was refused together with
// others. Batches that were resubmitted equally often share a commit. The caller holds the
// mutex.
func (q *committer) nextCommit() ([]*batch, *wire.Commit) {
	var set []*batch
	var laid spans
	records, cuts := 0, 0 // cuts: places where a range may continue in another stripe
	for _, b := range q.queue {
		if b.state != batchPut || b.small || (len(set) > 0 && (b.appended || set[0].appended || b.alone || set[0].alone || b.resubmits() != set[0].resubmits())) {
			break
		}
		next := slices.Clone(laid)
		for _, e := range b.extents {
			next.put(span{off: e.Offset, end: e.End(), b: b, at: e.StripeOffset})
		}
		records += b.records()
		cuts += len(b.sent) - 1
		if len(set) > 0 && (records > maxCommitRecords || len(next)+cuts > moraine.MaxCommitExtents) {
			break
		}
		set, laid = append(set, b), next
	}
	return set, q.commitOf(set)
}

// commitOf returns the commit of batches. The caller holds the mutex.
func (q *committer) commitOf(set []*batch) *wire.Commit {
	var laid spans
	for _, b := range set {
		for _, e := range b.extents {
			laid.put(span{off: e.Offset, end: e.End(), b: b, at: e.StripeOffset})
		}
	}
	op := &wire.Commit{Inode: uint64(q.sender.Inode), Mode: wire.CommitMode_COMMIT_MODE_OVERLAY,
		Final: len(set) == len(q.queue) && len(q.open) == 0}
	if set[0].appended {
		op.Mode = wire.CommitMode_COMMIT_MODE_APPEND
	}
	used := map[moraine.StripeID]bool{}
	for _, s := range laid {
		for _, e := range s.b.locate(s.at, s.end-s.off, s.off) {
			used[e.Stripe] = true
			op.Extents = append(op.Extents, &wire.Extent{Offset: uint64(e.Offset), Length: uint64(e.Length),
				Stripe: uint64(e.Stripe), StripeOffset: uint64(e.StripeOffset)})
		}
	}
	for _, b := range set {
		for _, s := range b.sent {
			if used[moraine.StripeID(s.Record.Id)] {
				op.Stripes = append(op.Stripes, s.Record)
				op.Promised = max(op.Promised, s.Ticket.Grant.Promised())
			}
		}
	}
	op.Level = levelOf(op.Stripes)
	return op
}

// committed records a successful commit; attr is nil if none was necessary. The caller holds
// the mutex.
func (q *committer) committed(set []*batch, op *wire.Commit, attr *wire.Attr) {
	used := map[uint64]bool{}
	for _, s := range op.Stripes {
		used[s.Id] = true
	}
	for _, b := range set {
		b.state = batchDone
		for _, s := range b.sent {
			q.c.io.Grants.Settle(s.Ticket, used[s.Record.Id])
		}
		b.sent = nil
		if b.appended && attr != nil {
			b.at = int64(attr.Size) - b.extents[0].Length
		}
	}
	if attr != nil {
		q.sawBase(attr)
	}
	q.spans.drop(func(b *batch) bool { return b.state == batchDone })
}

// commitFailed discards the batches of a commit. The caller holds the mutex.
func (q *committer) commitFailed(set []*batch, err error) {
	q.doubted = true // the commit may still have taken effect
	q.dropExpired()
	for _, b := range set {
		if b.state == batchPut {
			q.fail(b, err)
		}
	}
}

// dropExpired discards batches that were put under an expired session: no other session can
// commit them. The caller holds the mutex.
func (q *committer) dropExpired() {
	for _, b := range q.queue {
		if b.state == batchPut && q.sender.Expired(b.sent) {
			q.fail(b, &moraine.Error{Op: "commit", Ref: q.ref, Kind: moraine.IOError, Err: session.ErrPutLost})
		}
	}
	q.prune()
}

// oldest returns when the oldest uncommitted batch was begun; zero if there is none. The caller
// holds the mutex.
func (q *committer) oldest() time.Time {
	var old time.Time
	for _, l := range [][]*batch{q.open, q.queue} {
		for _, b := range l {
			if old.IsZero() || b.born.Before(old) {
				old = b.born
			}
		}
	}
	return old
}
