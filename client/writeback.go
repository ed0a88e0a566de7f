package client

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// launch waits for a slot and sends a batch in the background. The caller holds the gate. On
// error the batch is unchanged.
func (ct *content) launch(ctx context.Context, b *batch) error {
	if err := stripeio.Enter(ctx, ct.slots, &ct.c.io.Limits.Stripes); err != nil {
		return err
	}
	ct.sendOff(b)
	return nil
}

// sendOff sends a batch, which takes over the caller's slot. The caller holds the gate.
func (ct *content) sendOff(b *batch) {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.open = slices.DeleteFunc(ct.open, func(o *batch) bool { return o == b })
	if !b.appended {
		b.seal(ct.spans)
	}
	if b.st.Length == 0 { // all of it was overwritten, or cut
		b.state = batchDone
		ct.giveBack(b)
		<-ct.slots
		return
	}
	ct.seq++
	b.seq, b.state = ct.seq, batchSending
	ct.queue = append(ct.queue, b)
	ticket := b.ticket
	b.ticket = nil
	to := ct.sender
	ct.work.Go(func() {
		defer func() { <-ct.slots }()
		ctx, cancel := context.WithTimeout(ct.life, ct.c.cfg.Patience)
		defer cancel()
		sent, err := to.SendAgain(ctx, b.st, ticket)
		ct.arrived(b, sent, err)
	})
}

// arrived records the result of sending a batch, and releases its memory.
func (ct *content) arrived(b *batch, sent []stripeio.SentStripe, err error) {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	switch {
	case b.state == batchFailed: // by withdraw
		ct.sender.Release(sent)
	case err == nil:
		b.placed(sent)
		b.state = batchPut
		for i := range ct.spans {
			if ct.spans[i].b == b {
				ct.spans[i].mem = nil
			}
		}
	default:
		ct.fail(b, err)
	}
	ct.c.io.Writes.Release(b.free())
	ct.prune()
	if ct.tooMany() {
		ct.wanted = ct.seq
	}
	ct.kick()
	ct.signal()
}

// fail discards a batch: its bytes are lost. The caller holds the mutex.
func (ct *content) fail(b *batch, err error) {
	b.state, b.err = batchFailed, err
	ct.spans.drop(func(o *batch) bool { return o == b })
	ct.sender.Release(b.sent)
	b.sent = nil
	if !b.appended { // the caller of Append gets the error directly
		ct.faults.add(err)
		ct.c.log.Warn("written bytes are lost", "inode", ct.sender.Inode, "err", err)
	}
}

// prune removes ended batches from the queue. The caller holds the mutex.
func (ct *content) prune() {
	ct.queue = slices.DeleteFunc(ct.queue, func(b *batch) bool { return b.state == batchFailed || b.state == batchDone })
}

// doneUpTo returns the number of the last batch such that it and all earlier ones have ended.
// The caller holds the mutex.
func (ct *content) doneUpTo() int {
	if len(ct.queue) == 0 {
		return ct.seq
	}
	return ct.queue[0].seq - 1
}

// tooMany reports whether enough batches are on chunkservers for a commit of the usual size.
// The caller holds the mutex.
func (ct *content) tooMany() bool {
	records, extents := 0, 0
	for _, b := range ct.queue {
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

// flush sends everything written before and returns when all of it is committed, or has failed.
func (ct *content) flush(ctx context.Context) error {
	if err := ct.gate.Lock(ctx); err != nil {
		return err
	}
	err := ct.launchAll(ctx)
	ct.gate.Unlock()
	if err != nil {
		return err
	}
	if err := ct.awaitCommitted(ctx); err != nil {
		return err
	}
	return ct.c.meta.Exclusive.Settle(ctx, ct.made) // if nothing was written
}

// awaitCommitted returns when all that was sent is committed, or has failed.
func (ct *content) awaitCommitted(ctx context.Context) error {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	target := ct.seq
	ct.wanted = max(ct.wanted, target)
	ct.kick()
	for ct.doneUpTo() < target {
		changed := ct.changed
		ct.mu.Unlock()
		select {
		case <-changed:
			ct.mu.Lock()
		case <-ctx.Done():
			ct.mu.Lock()
			return retry.ContextError(ctx, "flush")
		}
	}
	return nil
}

// kick starts commitWanted if the first batch is ready to commit. The caller holds the mutex.
func (ct *content) kick() {
	if ct.running || !ct.ready() {
		return
	}
	ct.running = true
	ct.work.Go(ct.commitWanted)
}

func (ct *content) ready() bool {
	return len(ct.queue) > 0 && ct.queue[0].state == batchPut && ct.queue[0].seq <= ct.wanted && ct.life.Err() == nil
}

// commitWanted commits batches as long as the first one is ready.
func (ct *content) commitWanted() {
	for {
		if err := ct.publish.Lock(ct.life); err == nil {
			ct.commitNext()
			ct.publish.Unlock()
		}
		ct.mu.Lock()
		ct.signal()
		if !ct.ready() {
			ct.running = false
			ct.mu.Unlock()
			return
		}
		ct.mu.Unlock()
	}
}

// commitNext commits the first batches of the queue, as many as one log entry takes, or
// resubmits them. The caller holds publish.
func (ct *content) commitNext() {
	ct.mu.Lock()
	ct.dropExpired()
	if !ct.ready() {
		ct.mu.Unlock()
		return
	}
	set, op := ct.nextCommit()
	for _, b := range set {
		b.asked = true
	}
	ct.mu.Unlock()
	var reply *wire.CommitReply
	var err error
	if len(op.Extents) > 0 {
		reply, err = ct.commit(op, set[0].sent[0].Ticket.Grant.Session)
		if retry.IsKind(err, moraine.Stale) {
			if err = ct.resubmitBatches(set, err); err == nil {
				return // with a smaller scheme they may be more than one entry takes
			}
		}
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	switch {
	case len(set) > 1 && ct.made == nil && (retry.IsKind(err, moraine.QuotaExceeded) || retry.IsKind(err, moraine.TooLarge)):
		for _, b := range set { // the service refused all of it
			b.alone = true
		}
	case err != nil:
		ct.commitFailed(set, err)
	default:
		ct.sawProtection(op, reply)
		ct.committed(set, op, reply.GetAttr())
	}
	ct.prune()
}

// resubmitBatches resubmits batches whose commit was refused because devices went out, up to a
// limit. The caller holds publish, so that the extents do not change.
func (ct *content) resubmitBatches(set []*batch, refused error) error {
	if set[0].resubmits() >= stripeio.ResubmitTries { // the others have as many
		return stripeio.RefusedAgain(refused)
	}
	ct.c.log.Info("commit refused; resubmitting its stripes", "inode", ct.sender.Inode, "err", refused)
	for _, b := range set {
		ct.mu.Lock()
		old, to := b.sent, ct.sender
		b.sent = nil
		ct.mu.Unlock()
		sent, err := to.Resubmit(ct.life, old, to.SendAgain)
		if err != nil {
			return stripeio.CannotResubmit(refused, err)
		}
		ct.mu.Lock()
		b.placed(sent)
		ct.mu.Unlock()
	}
	return nil
}

// commit commits stripes that were put under s.
func (ct *content) commit(op *wire.Commit, s *session.Session) (*wire.CommitReply, error) {
	if ct.made != nil {
		if reply, done, err := ct.c.meta.Exclusive.Commit(ct.life, ct.made, op, s); done {
			return reply, err
		}
	}
	resp, err := ct.c.meta.DoUnder(ct.life, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}, s)
	if retry.IsKind(err, moraine.TooLarge) && op.Mode == wire.CommitMode_COMMIT_MODE_OVERLAY {
		if merr := ct.mergeTables(op, s); merr != nil {
			return nil, merr
		}
		resp, err = ct.c.meta.DoUnder(ct.life, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}, s)
	}
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
func (ct *content) nextCommit() ([]*batch, *wire.Commit) {
	var set []*batch
	var laid spans
	records, cuts := 0, 0 // cuts: places where a range may continue in another stripe
	for _, b := range ct.queue {
		if b.state != batchPut || (len(set) > 0 && (b.appended || set[0].appended || b.alone || set[0].alone || b.resubmits() != set[0].resubmits())) {
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
	return set, ct.commitOf(set)
}

// commitOf returns the commit of batches. The caller holds the mutex.
func (ct *content) commitOf(set []*batch) *wire.Commit {
	var laid spans
	for _, b := range set {
		for _, e := range b.extents {
			laid.put(span{off: e.Offset, end: e.End(), b: b, at: e.StripeOffset})
		}
	}
	op := &wire.Commit{Inode: uint64(ct.sender.Inode), Mode: wire.CommitMode_COMMIT_MODE_OVERLAY,
		Final: len(set) == len(ct.queue) && len(ct.open) == 0}
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
func (ct *content) committed(set []*batch, op *wire.Commit, attr *wire.Attr) {
	used := map[uint64]bool{}
	for _, s := range op.Stripes {
		used[s.Id] = true
	}
	for _, b := range set {
		b.state = batchDone
		for _, s := range b.sent {
			ct.c.io.Grants.Settle(s.Ticket, used[s.Record.Id])
		}
		b.sent = nil
		if b.appended && attr != nil {
			b.at = int64(attr.Size) - b.extents[0].Length
		}
	}
	if attr != nil {
		ct.sawBase(attr)
	}
	ct.spans.drop(func(b *batch) bool { return b.state == batchDone })
}

// commitFailed discards the batches of a commit. The caller holds the mutex.
func (ct *content) commitFailed(set []*batch, err error) {
	ct.doubted = true // the commit may still have taken effect
	ct.dropExpired()
	for _, b := range set {
		if b.state == batchPut {
			ct.fail(b, err)
		}
	}
}

// dropExpired discards batches that were put under an expired session: no other session can
// commit them. The caller holds the mutex.
func (ct *content) dropExpired() {
	for _, b := range ct.queue {
		if b.state == batchPut && ct.sender.Expired(b.sent) {
			ct.fail(b, &moraine.Error{Op: "commit", Ref: ct.ref, Kind: moraine.IOError, Err: session.ErrPutLost})
		}
	}
	ct.prune()
}

// commitAge is the age at which the client sends and commits written bytes without a flush.
// Together with the time for sending and one round of flushOld it stays below the five seconds
// that a client may lose.
const commitAge = 3 * time.Second

// flushOld sends and commits bytes older than commitAge, until ctx ends.
func (s *contents) flushOld(ctx context.Context, clk clock.Clock) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-clk.After(time.Second):
		}
		for _, ct := range s.all() {
			ct.flushIfOld()
			s.letGo(ct)
		}
	}
}

func (ct *content) flushIfOld() {
	ct.mu.Lock()
	old := ct.oldest()
	ct.mu.Unlock()
	if old.IsZero() || ct.c.clock.Now().Sub(old) < commitAge {
		return
	}
	if ct.gate.TryLock() { // otherwise a writer holds it, and sends full batches
		ct.launchSome()
		ct.gate.Unlock()
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.wanted = max(ct.wanted, ct.seq)
	ct.kick()
}

// oldest returns when the oldest uncommitted batch was begun; zero if there is none. The caller
// holds the mutex.
func (ct *content) oldest() time.Time {
	var old time.Time
	for _, l := range [][]*batch{ct.open, ct.queue} {
		for _, b := range l {
			if old.IsZero() || b.born.Before(old) {
				old = b.born
			}
		}
	}
	return old
}
