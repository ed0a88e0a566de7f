package client

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine/internal/clock"
)

// launch waits for a slot and sends a batch in the background. The caller holds the gate. On
// error the batch is unchanged.
func (ct *content) launch(ctx context.Context, b *batch) error {
	if err := ct.c.io.Limits.Stripes.Enter(ctx, ct.slots); err != nil {
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
	if b.st.Length == 0 { // all of it was overwritten, or truncated
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

// flush sends everything written before and returns when all of it is committed, or has failed.
func (ct *content) flush(ctx context.Context) error {
	if err := ct.gate.Lock(ctx); err != nil {
		return err
	}
	err := ct.sendAll(ctx)
	ct.gate.Unlock()
	if err != nil {
		return err
	}
	return ct.awaitCommitted(ctx)
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
