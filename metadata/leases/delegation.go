package leases

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// wantedPause is how long a directory is not delegated after a recall of its delegation.
const wantedPause = 10 * time.Second

// recalled is a delegation that somebody waits for.
type recalled struct {
	session uint64
	since   time.Time
	over    chan struct{} // closed when the delegation has ended
	// revoking: a waiter proposes to revoke it.
	revoking bool
}

// The recall of a delegation. Its session learns of it with its next poll, sends what it has queued,
// and ends the delegation. After patience the session is not renewed until it has. A term later
// it trusts nothing any more, and the leader revokes the delegation: what was not sent is lost.

// patience is how long a session may take to end a delegation before it is no longer renewed.
func (t *Table) patience() time.Duration { return t.term / 3 }

// Await returns when none of the delegations is left, and the request that met them can be done
// again.
func (k *Keeper) Await(ctx context.Context, met []kvtx.Met) error {
	k.Metrics.DelegationWaits.Inc()
	began := k.Clock.Now()
	defer func() { k.Metrics.DelegationWait.Observe(k.Clock.Since(began).Seconds()) }()
	recalls := make([]*recalled, len(met))
	for n, m := range met { // all at once, so that their sessions work at the same time
		if recalls[n] = k.table.recallDir(m); recalls[n] == nil {
			return lead.ErrStopped
		}
	}
	for n, m := range met {
		// The delegation may have ended between the state that the request met and the recall.
		if err := k.missed(m); err != nil {
			return err
		}
		if err := k.await(ctx, m, recalls[n], began); err != nil {
			return err
		}
	}
	return nil
}

// missed ends a recall whose delegation has ended already.
func (k *Keeper) missed(m kvtx.Met) error {
	return k.Store.View(func(r kvtx.Reader, _ uint64) error {
		has, err := delegation.Has(k.Machine.View(r), m.Dir, m.Session)
		if err == nil && !has {
			k.table.endRecall(m.Dir)
		}
		return err
	})
}

// await waits for the end of one delegation, and revokes it in the end.
func (k *Keeper) await(ctx context.Context, m kvtx.Met, r *recalled, began time.Time) error {
	for {
		left := r.since.Add(k.table.patience() + k.table.term).Sub(k.Clock.Now())
		if left <= 0 && k.table.revokes(r) {
			return k.revoke(ctx, m, r)
		}
		if left <= 0 {
			left = k.table.term // another waiter revokes it
		}
		select {
		case <-r.over:
			return nil
		case <-k.Clock.After(left):
		case <-ctx.Done():
			return k.delegated.GaveUp(ctx, k.Clock.Since(began))
		case <-k.Done:
			return lead.ErrStopped
		}
	}
}

// revoke takes a delegation from a session that did not end it.
func (k *Keeper) revoke(ctx context.Context, m kvtx.Met, r *recalled) error {
	defer k.table.revoked(r)
	_, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_RevokeDelegation{
		RevokeDelegation: &statepb.RevokeDelegation{Inode: uint64(m.Dir), Session: uint64(m.Session)}}})
	if err != nil {
		return err
	}
	k.Metrics.DelegationsRevoked.Inc()
	k.Log.Warn("a delegation was revoked: its session did not end it in time, and what it had not sent is lost", "directory", m.Dir, "session", m.Session)
	k.table.endRecall(m.Dir)
	return nil
}

// recallDir begins the recall of a delegation, or finds it; nil if this server does not lead.
func (t *Table) recallDir(m kvtx.Met) *recalled {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.leading {
		return nil
	}
	r := t.recalls[m.Dir]
	if r != nil && r.session == uint64(m.Session) {
		return r
	}
	if r != nil {
		close(r.over)
	}
	r = &recalled{session: uint64(m.Session), since: t.now(), over: make(chan struct{})}
	t.recalls[m.Dir], t.wanted[m.Dir] = r, r.since
	t.metrics.DelegationsRecalled.Inc()
	if h := t.sessions[r.session]; h != nil {
		close(h.wake)
		h.wake = make(chan struct{})
	}
	return r
}

// revokes reports whether the caller must revoke a recalled delegation.
func (t *Table) revokes(r *recalled) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.revoking {
		return false
	}
	r.revoking = true
	return true
}

func (t *Table) revoked(r *recalled) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.revoking = false
}

// endRecall wakes those that wait for a delegation, which has ended.
func (t *Table) endRecall(dir moraine.InodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.recalls[dir]; r != nil {
		close(r.over)
		delete(t.recalls, dir)
	}
}

// Observe wakes those that wait for delegations that a command has ended. It is called after readers
// can see the command.
func (k *Keeper) Observe(ev *kvtx.Events) {
	for _, dir := range ev.Undelegated {
		k.table.endRecall(dir)
	}
	k.Metrics.DelegationsEnded.Add(float64(len(ev.Undelegated)))
	if len(ev.SessionsEnded) == 0 {
		return
	}
	for _, id := range ev.SessionsEnded {
		k.table.endRecalls(func(r *recalled) bool { return r.session == uint64(id) })
	}
}

// CatchUp makes all that wait for delegations look again.
func (k *Keeper) CatchUp() { k.table.endRecalls(func(*recalled) bool { return true }) }

func (t *Table) endRecalls(of func(*recalled) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for dir, r := range t.recalls {
		if of(r) {
			close(r.over)
			delete(t.recalls, dir)
		}
	}
}

// wantedOf returns the delegations that a session must end, except those that it says it is ending.
// late says that it takes too long to end one. The caller holds the mutex.
func (t *Table) wantedOf(session uint64, ending []uint64) (dirs []uint64, late bool) {
	if len(t.recalls) == 0 {
		return nil, false
	}
	now := t.now()
	known := make(map[uint64]bool, len(ending))
	for _, id := range ending {
		known[id] = true
	}
	for dir, r := range t.recalls {
		if r.session != session {
			continue
		}
		late = late || now.Sub(r.since) >= t.patience()
		if !known[uint64(dir)] {
			dirs = append(dirs, uint64(dir))
		}
	}
	return dirs, late
}

// MayDelegate returns why a directory must not be delegated to a session now; "" if it may. Nobody
// else may have cached anything of it. A session that gets its lease before the delegation is
// applied drops everything then (recall).
func (t *Table) MayDelegate(dir moraine.InodeID, session, epoch uint64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	h := t.sessions[session]
	switch {
	case !t.leading || !t.settleRecovery():
		return "the leader does not know yet what other sessions have cached"
	case h == nil || h.epoch != epoch || h.ended || t.ranOut(h, now):
		return "the session has no cache leases"
	case now.Sub(t.wanted[dir]) <= wantedPause:
		return "another session wanted the directory a moment ago"
	case t.heat[dir].hot(now):
		return "several sessions change the directory"
	}
	if _, late := t.wantedOf(session, nil); late {
		return "the session takes too long to end another delegation"
	}
	for _, slot := range t.holdersOf(dir) {
		if other := t.slots[slot]; other != h && !t.ranOut(other, now) {
			return "another session has cached the directory"
		}
	}
	return ""
}
