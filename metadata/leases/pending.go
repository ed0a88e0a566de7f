package leases

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// wait is a pending change that ends when a recall number is acknowledged.
type wait struct {
	p      *pending
	number uint64
}

// pending is a command's change that some sessions with leases have not acknowledged.
type pending struct {
	keys []shownKey
	left int
	done chan struct{}
	// holders may have been dropped since.
	holders []*holder
}

// shownKey names attributes ("" as the name) or an entry.
type shownKey struct {
	inode moraine.InodeID
	name  string
}

func keyOf(t *kvtx.Touch) shownKey {
	if t.Name != "" {
		return shownKey{t.Lease, t.Name}
	}
	return shownKey{inode: t.Inode}
}

// hold delays answers that show the change. The caller holds the mutex.
func (t *Table) hold(p *pending, touches []kvtx.Touch) {
	for i := range touches {
		key := keyOf(&touches[i])
		if !slices.Contains(p.keys, key) {
			p.keys = append(p.keys, key)
			t.shown[key] = append(t.shown[key], p)
		}
	}
	t.pendings[p] = struct{}{}
	t.quiet.Store(false)
}

// satisfy ends one wait of a pending change. The caller holds the mutex.
func (t *Table) satisfy(p *pending) {
	if p.left--; p.left > 0 {
		return
	}
	close(p.done)
	delete(t.pendings, p)
	t.quiet.Store(t.leading && t.recovered == nil && len(t.pendings) == 0)
	for _, key := range p.keys {
		if rest := slices.DeleteFunc(t.shown[key], func(o *pending) bool { return o == p }); len(rest) > 0 {
			t.shown[key] = rest
		} else {
			delete(t.shown, key)
		}
	}
}

// ack records that a session has carried out its recalls up to a number. The caller holds the
// mutex.
func (t *Table) ack(h *holder, number uint64) {
	if number = min(number, h.sent); number <= h.acked {
		return
	}
	h.acked = number
	for len(h.recalls) > 0 && h.recalls[0].Number <= number {
		h.recalls = h.recalls[1:]
	}
	for len(h.waits) > 0 && h.waits[0].number <= number {
		t.satisfy(h.waits[0].p)
		h.waits = h.waits[1:]
	}
}

// resolve returns once find finds no pending change and the recovery is over.
func (k *Keeper) resolve(ctx context.Context, find func(*Table) *pending) error {
	t := k.table
	if t.quiet.Load() {
		return nil
	}
	began := k.Clock.Now()
	for waited := false; ; waited = true {
		t.mu.Lock()
		if !t.leading {
			t.mu.Unlock()
			return lead.ErrStopped
		}
		over, until := t.blocked(find)
		now := t.now()
		t.mu.Unlock()
		if over == nil {
			return nil
		}
		if !waited {
			t.metrics.LeaseWaits.Inc()
		}
		select {
		case <-over:
		case <-k.Clock.After(max(until.Sub(now), 0) + time.Millisecond):
		case <-ctx.Done():
			return k.recalled.GaveUp(ctx, k.Clock.Since(began))
		case <-k.Done:
			return lead.ErrStopped
		}
	}
}

// blocked returns the channel to wait for, and when the wait ends in any case; nil if there is
// nothing to wait for. The caller holds the mutex.
func (t *Table) blocked(find func(*Table) *pending) (over <-chan struct{}, until time.Time) {
	if !t.settleRecovery() {
		return t.recovered, t.recoverBy
	}
	for {
		p := find(t)
		if p == nil {
			return nil, until
		}
		now := t.now()
		until = time.Time{}
		for _, h := range p.holders {
			if t.sessions[h.id] != h || t.ranOut(h, now) {
				continue
			}
			if end := h.renewed.Add(t.term); until.IsZero() || end.Before(until) {
				until = end
			}
		}
		if p.left > 0 {
			return p.done, until
		}
	}
}

// ResolveSeen waits until an answer that shows seen may be sent.
func (k *Keeper) ResolveSeen(ctx context.Context, seen *kvtx.Seen) error {
	if seen.All {
		return k.resolveAll(ctx)
	}
	return k.resolve(ctx, func(t *Table) *pending {
		if len(t.pendings) == 0 {
			return nil
		}
		return t.showing(seen.Touches)
	})
}

// ResolveResult waits until a command's answer may be sent.
func (k *Keeper) ResolveResult(ctx context.Context, r *state.Result) error {
	if r.Repeated {
		return k.resolveAll(ctx)
	}
	if len(r.Touched)+len(r.Read) == 0 {
		return nil // it shows nothing that clients cache
	}
	return k.resolve(ctx, func(t *Table) *pending {
		if len(t.pendings) == 0 {
			return nil
		}
		for _, id := range r.Read {
			if ps := t.shown[shownKey{inode: id}]; len(ps) > 0 {
				return ps[0]
			}
		}
		return t.showing(r.Touched)
	})
}

// resolveAll waits until all changes that are pending now are acknowledged.
func (k *Keeper) resolveAll(ctx context.Context) error {
	if k.table.quiet.Load() {
		return nil
	}
	var now []*pending
	k.table.mu.Lock()
	for p := range k.table.pendings {
		now = append(now, p)
	}
	k.table.mu.Unlock()
	return k.resolve(ctx, func(*Table) *pending {
		for _, p := range now {
			if p.left > 0 {
				return p
			}
		}
		return nil
	})
}

// showing finds a pending change that one of touches shows. The caller holds the mutex.
func (t *Table) showing(touches []kvtx.Touch) *pending {
	for i := range touches {
		if ps := t.shown[keyOf(&touches[i])]; len(ps) > 0 {
			return ps[0]
		}
	}
	return nil
}
