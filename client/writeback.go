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

// launch sends a batch in the background, after a wait for a slot. The gate is
// held. On error the batch is as it was.
func (ct *content) launch(ctx context.Context, b *batch) error {
	if err := stripeio.Enter(ctx, ct.slots, &ct.c.io.Limits.Stripes); err != nil {
		return err
	}
	ct.sendOff(b)
	return nil
}

// sendOff sends a batch, which takes the caller's slot. The gate is held.
func (ct *content) sendOff(b *batch) {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.open = slices.DeleteFunc(ct.open, func(o *batch) bool { return o == b })
	if !b.appended {
		b.seal(ct.spans)
	}
	if b.st.Length == 0 { // all of it was overwritten, or cut off
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

// arrived takes what became of sending a batch, and gives its memory back.
func (ct *content) arrived(b *batch, sent []stripeio.SentStripe, err error) {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	switch {
	case b.state == batchFailed: // withdrawn
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

// fail gives a batch up: its bytes are lost. The mutex is held.
func (ct *content) fail(b *batch, err error) {
	b.state, b.err = batchFailed, err
	ct.spans.drop(func(o *batch) bool { return o == b })
	ct.sender.Release(b.sent)
	b.sent = nil
	if !b.appended { // who appended is told at once
		ct.faults.add(err)
		ct.c.log.Warn("written bytes are lost", "inode", ct.sender.Inode, "err", err)
	}
}

// prune takes what has ended off the queue. The mutex is held.
func (ct *content) prune() {
	ct.queue = slices.DeleteFunc(ct.queue, func(b *batch) bool { return b.state == batchFailed || b.state == batchDone })
}

// doneUpTo returns the last batch that it and all before it have ended. The
// mutex is held.
func (ct *content) doneUpTo() int {
	if len(ct.queue) == 0 {
		return ct.seq
	}
	return ct.queue[0].seq - 1
}

// tooMany reports whether enough is in place for a commit of the usual size. The
// mutex is held.
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

// records returns how many records of the state the commit of a batch touches,
// about.
func (b *batch) records() int {
	n := 2 * len(b.extents)
	for _, s := range b.sent {
		n += 3 + len(s.Record.Chunks)
	}
	return n
}

// resubmits returns how often the batch was put anew. It must have been put.
func (b *batch) resubmits() int { return stripeio.MostResubmits(b.sent) }

// flush sends everything written before and returns when all of it is
// committed, or given up.
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
	return ct.c.meta.Exclusive.Settle(ctx, ct.made) // where nothing was written
}

// awaitCommitted returns when all that was sent is committed, or given up.
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

// kick begins to commit, if something in place is to be. The mutex is held.
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

// commitWanted commits, batch after batch, as long as something in place is to
// be.
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

// commitNext commits the first batches of the queue, as many as one entry
// takes, or has them put anew. Publish is held.
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
				return // by a lesser scheme they may be more than one entry takes
			}
		}
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	switch {
	case len(set) > 1 && ct.made == nil && (retry.IsKind(err, moraine.QuotaExceeded) || retry.IsKind(err, moraine.TooLarge)):
		for _, b := range set { // refused, and so nothing of it was done
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

// resubmitBatches has the bytes of batches put anew that could not be committed since
// devices went out, some times. Publish is held, so that their extents stay as they are.
func (ct *content) resubmitBatches(set []*batch, refused error) error {
	if set[0].resubmits() >= stripeio.ResubmitTries { // and so are the others
		return stripeio.RefusedAgain(refused)
	}
	ct.c.log.Info("what was put cannot be committed, and is put anew", "inode", ct.sender.Inode, "err", refused)
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

// commit makes a commit of what was put under s.
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

// nextCommit returns the batches of the next commit, and it. Where they overlap
// the later one counts. What was appended goes alone, and so does what was refused with
// others; batches that were resubmitted equally often share a commit. The mutex is held.
func (ct *content) nextCommit() ([]*batch, *wire.Commit) {
	var set []*batch
	var laid spans
	records, cuts := 0, 0 // cuts: where a range may go on in another stripe
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

// commitOf returns the commit of batches. The mutex is held.
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

// committed takes a commit that was made; attr is nil where none was needed. The
// mutex is held.
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

// commitFailed gives up the batches of a commit. The mutex is held.
func (ct *content) commitFailed(set []*batch, err error) {
	ct.doubted = true // it may have taken effect all the same
	ct.dropExpired()
	for _, b := range set {
		if b.state == batchPut {
			ct.fail(b, err)
		}
	}
}

// dropExpired gives up what was put under a session that is over: nobody can
// commit it any more. The mutex is held.
func (ct *content) dropExpired() {
	for _, b := range ct.queue {
		if b.state == batchPut && ct.sender.Expired(b.sent) {
			ct.fail(b, &moraine.Error{Op: "commit", Ref: ct.ref, Kind: moraine.IOError, Err: session.ErrPutLost})
		}
	}
	ct.prune()
}

// commitAge is after how long written bytes are sent and committed without being
// asked for. With what sending and one round of flushOld take it stays below the
// five seconds that a client may lose.
const commitAge = 3 * time.Second

// flushOld has all that was written some time ago sent and committed, until ctx
// ends.
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
	if ct.gate.TryLock() { // else somebody writes, and sends what is full
		ct.launchSome()
		ct.gate.Unlock()
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.wanted = max(ct.wanted, ct.seq)
	ct.kick()
}

// oldest returns since when there is something to be committed; zero: nothing
// is. The mutex is held.
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
