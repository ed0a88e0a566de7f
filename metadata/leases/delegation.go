package leases

import (
	"context"
	"maps"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// wantedPause is how long a directory is not delegated after a recall of its delegation.
const wantedPause = 10 * time.Second

const (
	// distrustPause is how long a session gets no delegation after its delegations were revoked.
	distrustPause = time.Minute
	// maxRevocations bounds the commands that take all delegations of a session. Each takes 1,000, and
	// meanwhile a batch of the session may make 512 others.
	maxRevocations = 10
)

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
	// They may have ended between the state that the request met and the recall. This is done
	// before any wait: a recall without a delegation would make its session late.
	if err := k.EndMissed(met); err != nil {
		return err
	}
	for n, m := range met {
		if err := k.await(ctx, m, recalls[n], began); err != nil {
			return err
		}
	}
	return nil
}

// EndMissed ends the recalls of those delegations that have ended already.
func (k *Keeper) EndMissed(met []kvtx.Met) error {
	return k.Store.View(func(r kvtx.Reader, _ uint64) error {
		v := k.Machine.View(r)
		for _, m := range met {
			has, err := delegation.Has(v, m.Dir, m.Session)
			if err != nil {
				return err
			}
			if !has {
				k.table.endRecall(m)
			}
		}
		return nil
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

// revoke takes all delegations from a session that did not end one. It trusts none of them any
// more, and a request that meets many of them waits only once.
func (k *Keeper) revoke(ctx context.Context, m kvtx.Met, r *recalled) error {
	defer k.table.revoked(r)
	if err := k.EndMissed([]kvtx.Met{m}); err != nil || k.table.isOver(r) {
		return err
	}
	k.table.distrust(r.session)
	for pieces := 0; m.Dir != 0 && pieces < maxRevocations; pieces++ {
		_, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_RevokeDelegation{
			RevokeDelegation: &statepb.RevokeDelegation{Inode: uint64(m.Dir), Session: uint64(m.Session)}}})
		if err != nil {
			return err
		}
		k.table.endRecall(m)
		if m.Dir, err = k.oneOf(m.Session); err != nil {
			return err
		}
	}
	k.Metrics.DelegationsRevoked.Inc()
	k.Log.Warn("the delegations of a session were revoked: it did not end one in time, and what it had not sent is lost", "session", m.Session)
	return nil
}

// oneOf returns a directory that is delegated to a session; 0 if none is.
func (k *Keeper) oneOf(session moraine.SessionID) (dir moraine.InodeID, err error) {
	err = k.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		dir, err = delegation.OneOf(k.Machine.View(r), session)
		return err
	})
	return dir, err
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

// isOver reports whether a recalled delegation has ended.
func (t *Table) isOver(r *recalled) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// distrust gives a session no delegation for a while.
func (t *Table) distrust(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.leading {
		return
	}
	now := t.now()
	maps.DeleteFunc(t.distrusted, func(_ uint64, since time.Time) bool { return now.Sub(since) > distrustPause })
	t.distrusted[session] = now
}

// endRecall wakes those that wait for a delegation, which has ended. The directory may have been
// delegated to another session since, whose recall stays.
func (t *Table) endRecall(m kvtx.Met) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.recalls[m.Dir]; r != nil && r.session == uint64(m.Session) {
		close(r.over)
		delete(t.recalls, m.Dir)
	}
}

// Observe wakes those that wait for delegations that a command has ended. It is called after readers
// can see the command.
func (k *Keeper) Observe(ev *kvtx.Events) {
	for _, m := range ev.Undelegated {
		k.table.endRecall(m)
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
	case !t.distrusted[session].IsZero() && now.Sub(t.distrusted[session]) <= distrustPause:
		return "the session did not end another delegation in time"
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
