package client

import (
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
)

// maxOpenBatches bounds the runs of writes, at different places of one file,
// that are gathered side by side.
const maxOpenBatches = 4

// largeWrite is how much a write at a new place must have to be taken for the
// beginning of a run.
const largeWrite = 64 << 10

// write takes p, in as many steps as that needs.
func (ct *content) write(ctx context.Context, p []byte, off int64) (int, error) {
	if off > moraine.MaxFileSize-int64(len(p)) { // the service would refuse all that is committed with it
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

// mayGrow holds the growth of the file to an end against the quotas above it.
func (ct *content) mayGrow(ctx context.Context, end int64) error {
	for {
		ct.mu.Lock()
		base, running := ct.base.Size, ct.running
		ct.mu.Unlock()
		err := ct.room.admit(ctx, ct.c, ct.sender.Inode, base, end-int64(base))
		if moraine.KindOf(err) != moraine.QuotaExceeded {
			return err
		}
		// The service may count what a commit has brought that this client has not
		// heard of yet: that would be held against the quota twice.
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

// step takes the next bytes, or does one thing that has to be done first, such
// as to send a batch that is full. The gate is held.
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

// overwrite copies over bytes that are in a batch not sent yet, as far as those
// at off lie together.
func (ct *content) overwrite(p []byte, off int64) int {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	i := ct.spans.first(off)
	if i == len(ct.spans) || ct.spans[i].off > off || ct.spans[i].b.state != batchOpen {
		return 0
	}
	s := ct.spans[i].from(off)
	ct.wrote = ct.c.clock.Now()
	return copy(s.mem, p)
}

// fill copies into the room that the batch has, and returns how much it took.
func (ct *content) fill(b *batch, p []byte, off, limit int64) int {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	room := b.room()
	n := copy(room[:min(int64(len(room)), limit-b.length)], p)
	b.used += n
	b.length += int64(n)
	b.tail = off + int64(n)
	if !ct.spans.put(span{off: off, end: b.tail, b: b, mem: room[:n]}) {
		b.pieces++
	}
	ct.wrote = ct.c.clock.Now()
	return n
}

// batchFor returns the open batch that a write goes to, a new one where there
// is none; nil: there are too many. The gate is held.
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

// stalest returns the open batch that was begun first.
func (ct *content) stalest() *batch {
	return slices.MinFunc(ct.open, func(a, b *batch) int { return a.born.Compare(b.born) })
}

// takeTicket gets the batch its stripe's number, now that it is to be a large
// one: its scheme says how long it may become.
func (ct *content) takeTicket(ctx context.Context, b *batch) error {
	t, err := ct.c.io.Grants.Take(ctx, ct.sender.Key, ct.sender.Inode)
	if err != nil {
		return err
	}
	b.ticket, b.limit = t, int64(t.Scheme.K)*ct.c.io.ChunkBytes(t.Scheme)
	_, err = ct.reserve(ctx, b, b.share(b.length)+int64(t.Scheme.M)*moraine.BlockSize)
	return err
}

// grow gives the batch another buffer.
func (ct *content) grow(ctx context.Context, b *batch, limit int64) error {
	n := min(max(b.own(), stripeio.FirstSegment), ct.c.cfg.ChunkBytes, limit-b.length)
	if ok, err := ct.reserve(ctx, b, n+b.share(n)); !ok {
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

// share returns how much parity n bytes of the batch come to.
func (b *batch) share(n int64) int64 {
	if b.ticket == nil || b.ticket.Scheme.IsCopies() {
		return 0
	}
	k, m := int64(b.ticket.Scheme.K), int64(b.ticket.Scheme.M)
	return (n*m + k - 1) / k
}

// reserve takes n bytes of the budget for the batch. Where they are not there
// all that is open is sent as it is, so that nothing waits while it holds bytes
// that do not move; false with no error says that this happened. The gate is held.
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

// launchAll sends everything open. The gate is held.
func (ct *content) launchAll(ctx context.Context) error {
	for len(ct.open) > 0 {
		if err := ct.launch(ctx, ct.open[0]); err != nil {
			return err
		}
	}
	return nil
}

// Yield sends what is open, if nobody is at work with it: somebody waits for
// memory.
func (ct *content) Yield() {
	if !ct.gate.TryLock() {
		return // whoever has the gate looks at budget.wanted when it lets go
	}
	defer ct.gate.Unlock()
	ct.launchSome()
}

// launchSome is launchAll as far as it need not wait: what is on its way gives
// its memory back. The gate is held.
func (ct *content) launchSome() {
	for len(ct.open) > 0 {
		select {
		case ct.slots <- struct{}{}:
			ct.sendOff(ct.open[0])
		default:
			return
		}
	}
}
