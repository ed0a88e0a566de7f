package client

import (
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
)

// maxOpenBatches bounds the runs of writes, at different places of one file, that the client
// gathers at once.
const maxOpenBatches = 4

// largeWrite is the minimum size of a write at a new place that counts as the beginning of a
// run.
const largeWrite = 64 << 10

// write takes p, in as many steps as necessary.
func (ct *content) write(ctx context.Context, p []byte, off int64) (int, error) {
	if off > moraine.MaxFileSize-int64(len(p)) { // the service would refuse the whole commit
		return 0, &moraine.Error{Kind: moraine.TooLarge}
	}
	if err := ct.mayGrow(ctx, off+int64(len(p))); err != nil {
		return 0, err
	}
	if err := ct.gate.Lock(ctx); err != nil {
		return 0, err
	}
	n := 0
	var err error
	for n < len(p) && err == nil {
		var took int
		took, err = ct.step(ctx, p[n:], off+int64(n))
		n += took
	}
	ct.gate.Unlock()
	if ct.c.io.Writes.Wanted() {
		ct.Yield()
	}
	return n, err
}

// mayGrow checks the growth of the file up to end against the quotas above it.
func (ct *content) mayGrow(ctx context.Context, end int64) error {
	for {
		ct.mu.Lock()
		base, running := ct.base.Size, ct.running
		ct.mu.Unlock()
		err := ct.room.admit(ctx, ct.c, ct.sender.Inode, base, end-int64(base))
		if moraine.KindOf(err) != moraine.QuotaExceeded {
			return err
		}
		// The service may already count a commit whose reply this client has not received. Those
		// bytes would count against the quota twice.
		if running {
			if err := ct.awaitCommitted(ctx); err != nil {
				return err
			}
		}
		ct.mu.Lock()
		same := ct.base.Size == base
		ct.mu.Unlock()
		if same {
			return err
		}
	}
}

// step takes the next bytes, or first does one thing that must come before, such as sending a
// full batch. The caller holds the gate.
func (ct *content) step(ctx context.Context, p []byte, off int64) (int, error) {
	if n := ct.overwrite(p, off); n > 0 {
		return n, nil
	}
	b := ct.batchFor(off, len(p))
	if b == nil {
		return 0, ct.launch(ctx, ct.stalest())
	}
	limit := ct.c.io.SmallBytes()
	switch {
	case b.ticket == nil && b.length+int64(len(p)) > limit && !b.full(endOfFile):
		return 0, ct.takeTicket(ctx, b)
	case b.ticket != nil:
		limit = b.limit
	}
	if b.full(limit) {
		return 0, ct.launch(ctx, b)
	}
	if len(b.room()) == 0 {
		return 0, ct.grow(ctx, b, limit)
	}
	return ct.fill(b, p, off, limit), nil
}

// batchFor returns the open batch to which a write goes, or a new one. It returns nil if too
// many are open. The caller holds the gate.
func (ct *content) batchFor(off int64, n int) *batch {
	for _, b := range ct.open {
		if b.tail == off {
			return b
		}
	}
	for _, b := range ct.open {
		if b.near(off, stripeChunks*ct.c.cfg.ChunkBytes) {
			return b
		}
	}
	scatter := n < largeWrite && len(ct.open) > 0
	if scatter {
		if i := slices.IndexFunc(ct.open, func(b *batch) bool { return b.scatter }); i >= 0 {
			return ct.open[i]
		}
	}
	if len(ct.open) >= maxOpenBatches {
		return nil
	}
	b := &batch{born: ct.c.clock.Now(), scatter: scatter, tail: off}
	ct.mu.Lock()
	ct.open = append(ct.open, b)
	ct.mu.Unlock()
	return b
}

// stalest returns the oldest open batch.
func (ct *content) stalest() *batch {
	return slices.MinFunc(ct.open, func(a, b *batch) int { return a.born.Compare(b.born) })
}

// takeTicket gets a stripe number for a batch that becomes a large stripe. The ticket's scheme
// bounds its length.
func (ct *content) takeTicket(ctx context.Context, b *batch) error {
	t, err := ct.c.io.Grants.Take(ctx, ct.sender.Key, ct.sender.Inode)
	if err != nil {
		return err
	}
	b.ticket, b.limit = t, int64(t.Scheme.K)*ct.c.io.ChunkBytes(t.Scheme)
	_, err = ct.reserve(ctx, b, b.ticket.Parity(b.length)+int64(t.Scheme.M)*moraine.BlockSize)
	return err
}

// grow adds a buffer to the batch.
func (ct *content) grow(ctx context.Context, b *batch, limit int64) error {
	n := min(max(b.own(), stripeio.FirstSegment), ct.c.cfg.ChunkBytes, limit-b.length)
	if ok, err := ct.reserve(ctx, b, n+b.ticket.Parity(n)); !ok {
		return err
	}
	buf, err := ct.c.io.Pool.Get(ctx, int(n))
	if err != nil {
		return err
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	b.bufs, b.used = append(b.bufs, buf), 0
	return nil
}

// reserve takes n bytes of the budget for the batch. If the budget has fewer left, it sends all
// open batches as they are. Otherwise a writer could wait for bytes that sit idle in its own
// batch. It then returns false with no error. The caller holds the gate.
func (ct *content) reserve(ctx context.Context, b *batch, n int64) (bool, error) {
	w := ct.c.io.Writes
	if w.Try(n) {
		b.charged += n
		return true, nil
	}
	if slices.ContainsFunc(ct.open, func(b *batch) bool { return b.charged > 0 }) {
		ct.c.metrics.StripesCutShort.Inc()
		return false, ct.launchAll(ctx)
	}
	if err := w.Acquire(ctx, n); err != nil {
		return false, err
	}
	b.charged += n
	return true, nil
}

// launchAll sends all open batches. The caller holds the gate.
func (ct *content) launchAll(ctx context.Context) error {
	for len(ct.open) > 0 {
		if err := ct.launch(ctx, ct.open[0]); err != nil {
			return err
		}
	}
	return nil
}

// Yield sends the open batches, unless a writer holds the gate: another writer waits for
// memory.
func (ct *content) Yield() {
	if !ct.gate.TryLock() {
		return // the holder of the gate checks budget.wanted after it unlocks
	}
	defer ct.gate.Unlock()
	ct.launchSome()
}

// launchSome is sendAll, but never waits: batches being sent will release their memory. The
// caller holds the gate.
func (ct *content) launchSome() {
	ct.mu.Lock()
	ct.gatherSmall()
	ct.mu.Unlock()
	for len(ct.open) > 0 {
		select {
		case ct.slots <- struct{}{}:
			ct.sendOff(ct.open[0])
		default:
			return
		}
	}
}
