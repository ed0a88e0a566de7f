package leases

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	statesession "github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// exclusiveLease is the leader's view of an exclusive lease on a directory
// (metadata/state/session/hold.go). The lease itself is in the state, where the next leader finds
// it. That leader also answers nothing about the directory until the holder has sent its pending
// creates.
type exclusiveLease struct {
	session moraine.SessionID
	since   uint64
	ended   chan struct{} // closed when the lease has ended
	// registration of the holder that was asked to return it; 0 if none
	recalled uint64
}

// leadHolds loads the exclusive leases from the state. The caller holds the mutex.
func (t *Table) leadHolds(holds []record.Hold) {
	t.exclusive = make(map[moraine.InodeID]*exclusiveLease, len(holds))
	t.changeHolds(holds)
}

// changeHolds applies changes of exclusive leases. The caller holds the mutex.
func (t *Table) changeHolds(changes []record.Hold) {
	for _, c := range changes {
		if old := t.exclusive[c.Directory]; old != nil {
			close(old.ended)
			delete(t.exclusive, c.Directory)
			if h := t.sessions[uint64(old.session)]; h != nil {
				delete(h.asked, c.Directory)
			}
		}
		if c.Session != 0 {
			t.exclusive[c.Directory] = &exclusiveLease{session: c.Session, since: c.Since, ended: make(chan struct{})}
		}
	}
	t.exclusiveCount.Store(int64(len(t.exclusive)))
	t.metrics.Holds.Set(float64(len(t.exclusive)))
}

// dropHolds forgets the exclusive leases because another server leads. The caller holds the mutex.
func (t *Table) dropHolds() {
	for _, h := range t.exclusive {
		close(h.ended)
	}
	t.exclusive = nil
	t.exclusiveCount.Store(0)
	t.metrics.Holds.Set(0)
}

// ask recalls an exclusive lease from a session. The caller holds the mutex.
func (t *Table) ask(h *holder, dir moraine.InodeID) {
	if h.asked == nil {
		h.asked = map[moraine.InodeID]time.Time{}
	}
	h.asked[dir] = t.now()
	h.sent++
	t.metrics.HoldRecalls.Inc()
	if len(h.recalls) >= maxRecalls {
		h.ended, h.recalls = true, nil
	} else {
		h.recalls = append(h.recalls, &wire.Recall{Number: h.sent, Holds: []uint64{uint64(dir)}})
	}
	close(h.wake)
	h.wake = make(chan struct{})
}

// keeps reports whether the session has kept a recalled directory for a term. The leader then does
// not renew its leases, because others wait. The caller holds the mutex.
func (t *Table) keeps(h *holder) bool {
	now := t.now()
	for _, at := range h.asked {
		if now.Sub(at) > t.term {
			return true
		}
	}
	return false
}

// WantBack returns once an exclusive lease that blocks a request has ended: the holder returned it,
// or lost it because its leases expired.
func (k *Keeper) WantBack(ctx context.Context, want record.Hold) error {
	t, began := k.table, k.Clock.Now()
	for {
		var wait <-chan struct{}
		var until time.Time
		t.mu.Lock()
		e := t.exclusive[want.Directory]
		h := t.sessions[uint64(want.Session)]
		now := t.now()
		switch {
		case !t.leading:
			t.mu.Unlock()
			return lead.ErrStopped
		case e == nil || e.session != want.Session || e.since != want.Since:
			t.mu.Unlock()
			return nil
		case !t.settleRecovery(): // the session may still come back
			wait, until = t.recovered, t.recoverBy
		case h == nil || t.ranOut(h, now):
			t.mu.Unlock()
			t.metrics.HoldsLapsed.Inc()
			_, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_LapseHold{
				LapseHold: &statepb.LapseHold{Directory: uint64(want.Directory), Session: uint64(want.Session), Since: want.Since}}})
			if err != nil {
				return err
			}
			continue
		default:
			if e.recalled != h.epoch {
				e.recalled = h.epoch
				t.ask(h, want.Directory)
			}
			wait, until = e.ended, h.renewed.Add(t.term)
		}
		t.mu.Unlock()
		select {
		case <-wait:
		case <-k.Clock.After(max(until.Sub(now), 0) + time.Millisecond):
		case <-ctx.Done():
			return k.returned.GaveUp(ctx, k.Clock.Since(began))
		case <-k.Done:
			return lead.ErrStopped
		}
	}
}

// HoldSeen returns another session's exclusive lease on a directory that an answer shows, by an
// entry or its attributes. It also returns a lease under which the session may have created what
// the answer says is missing. It ignores leases outside the caller's scope, because the answer
// shows nothing from there.
func (k *Keeper) HoldSeen(r kvtx.Reader, c *lead.Call, seen *kvtx.Seen) (record.Hold, error) {
	session := moraine.SessionID(c.Req.Session)
	last := moraine.InodeID(0)
	for i := range seen.Touches {
		touch := &seen.Touches[i]
		if touch.Lease == last || touch.Lease == 0 || (touch.Name == "" && touch.Inode != touch.Lease) {
			continue
		}
		last = touch.Lease
		h, err := statesession.Holder(k.Machine.View(r), touch.Lease)
		if minds, err := k.blocks(r, c, h, err); err != nil || minds {
			return h, err
		}
	}
	for _, id := range seen.Missing {
		h, err := statesession.NumberHold(k.Machine.View(r), id, session)
		if minds, err := k.blocks(r, c, h, err); err != nil || minds {
			return h, err
		}
	}
	return record.Hold{}, nil
}

// blocks reports whether an exclusive lease belongs to another session and is in the caller's
// scope. err is the error of finding it.
func (k *Keeper) blocks(r kvtx.Reader, c *lead.Call, h record.Hold, err error) (bool, error) {
	if err != nil || h.Session == 0 || uint64(h.Session) == c.Req.Session {
		return false, err
	}
	return content.MayName(k.Machine.View(r), c.Caller, moraine.SessionID(c.Req.Session), h.Directory)
}

// Holds reads the exclusive leases of the state. No command begins or ends one until the leadership
// serves.
func (k *Keeper) Holds() (holds []record.Hold, err error) {
	err = k.Store.View(func(r kvtx.Reader, _ uint64) error {
		return statesession.Holds(k.Machine.View(r), func(h record.Hold) { holds = append(holds, h) })
	})
	return holds, err
}

// Hold gives a session an exclusive lease, if its cache leases are valid and other sessions do not
// compete for the directory.
func (k *Keeper) Hold(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if dir := moraine.InodeID(c.Req.GetHold().GetDirectory()); dir != 0 {
		if err := k.table.mayHold(c.Req.Session, c.Req.LeaseEpoch, dir); err != nil {
			return nil, err
		}
	}
	return k.Propose(ctx, c.Caller, c.Req)
}

// mayHold refuses a session without a registration for recalls, because other sessions may have to
// recall the directory from it.
func (t *Table) mayHold(session, epoch uint64, dir moraine.InodeID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	h := t.sessions[session]
	switch {
	case h == nil || h.epoch != epoch || h.ended || t.ranOut(h, now):
		return &moraine.Error{Ref: dir.String(), Kind: moraine.Busy, Err: fmt.Errorf("the session holds no leases now")}
	case t.heat[dir].hot(now):
		return &moraine.Error{Ref: dir.String(), Kind: moraine.Busy, Err: fmt.Errorf("several sessions work in the directory")}
	}
	return nil
}
