package metadata

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// exclusiveLease is a hold (metadata/state/hold.go), an exclusive lease on a directory, as the leader
// knows it. The lease itself is in the state: the next leader finds it there, and
// serves nothing of the directory either before its holder has sent what it had not.
type exclusiveLease struct {
	session moraine.SessionID
	since   uint64
	ended   chan struct{} // closed when it has ended
	// recalled is the standing of the holder that was told to give it back, 0: none.
	recalled uint64
}

// leadHolds takes over the exclusive leases of the state. The mutex is held.
func (t *leaseTable) leadHolds(holds []state.Hold) {
	t.exclusive = make(map[moraine.InodeID]*exclusiveLease, len(holds))
	t.changeHolds(holds)
}

// changeHolds follows the exclusive leases. The mutex is held.
func (t *leaseTable) changeHolds(changes []state.Hold) {
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

// dropHolds forgets the exclusive leases: another server leads. The mutex is held.
func (t *leaseTable) dropHolds() {
	for _, h := range t.exclusive {
		close(h.ended)
	}
	t.exclusive = nil
	t.exclusiveCount.Store(0)
	t.metrics.Holds.Set(0)
}

// ask tells a session to give a directory back. The mutex is held.
func (t *leaseTable) ask(h *holder, dir moraine.InodeID) {
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

// keeps reports whether the session has kept a directory for a term since it was
// asked for it. Its leases are not renewed: others wait. The mutex is held.
func (t *leaseTable) keeps(h *holder) bool {
	now := t.now()
	for _, at := range h.asked {
		if now.Sub(at) > t.term {
			return true
		}
	}
	return false
}

// wantBack returns once an exclusive lease has ended that is in somebody's way: its
// holder gave it back, or had no leases any more and has lost it.
func (l *leader) wantBack(ctx context.Context, want state.Hold) error {
	t := l.lease
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
			return errStopped
		case e == nil || e.session != want.Session || e.since != want.Since:
			t.mu.Unlock()
			return nil
		case !t.settleRecovery(): // it may come back
			wait, until = t.recovered, t.recoverBy
		case h == nil || t.ranOut(h, now):
			t.mu.Unlock()
			t.metrics.HoldsLapsed.Inc()
			_, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_LapseHold{
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
		case <-l.deps.Clock.After(max(until.Sub(now), 0) + time.Millisecond):
		case <-ctx.Done():
			return contextError("metadata.hold", ctx)
		case <-l.done:
			return errStopped
		}
	}
}

// holdSeen returns another session's exclusive lease on a directory of which an
// answer shows an entry, or the attributes, or under which it may have made what the
// answer says is not there. Leases outside of the caller's scope are passed over: the
// answer shows nothing of what is there.
func (l *leader) holdSeen(r state.Reader, c *call, seen *state.Seen) (state.Hold, error) {
	session := moraine.SessionID(c.req.Session)
	last := moraine.InodeID(0)
	for i := range seen.Touches {
		touch := &seen.Touches[i]
		if touch.Lease == last || touch.Lease == 0 || (touch.Name == "" && touch.Inode != touch.Lease) {
			continue
		}
		last = touch.Lease
		h, err := l.machine.Holder(r, touch.Lease)
		if minds, err := l.blocks(r, c, h, err); err != nil || minds {
			return h, err
		}
	}
	for _, id := range seen.Missing {
		h, err := l.machine.NumberHold(r, id, session)
		if minds, err := l.blocks(r, c, h, err); err != nil || minds {
			return h, err
		}
	}
	return state.Hold{}, nil
}

// blocks reports whether a hold, which was found unless err says why not, is another session's
// and in the caller's scope.
func (l *leader) blocks(r state.Reader, c *call, h state.Hold, err error) (bool, error) {
	if err != nil || h.Session == 0 || uint64(h.Session) == c.req.Session {
		return false, err
	}
	return l.machine.MayName(r, c.caller, moraine.SessionID(c.req.Session), h.Directory)
}

// applied proposes a command until no exclusive lease is in its way.
func (l *leader) applied(ctx context.Context, stopped <-chan struct{}, cmd *statepb.Command) (state.Result, error) {
	for {
		res, err := l.proposer.propose(ctx, stopped, cmd, nil)
		if err != nil || res.Met.Directory == 0 {
			return res, err
		}
		if err := l.wantBack(ctx, res.Met); err != nil {
			return res, err
		}
	}
}

// loadHolds reads the exclusive leases of the state. Until the leadership serves, no
// command gives or ends one.
func (l *leader) loadHolds() error {
	return l.store.View(func(r state.Reader, _ uint64) error {
		l.holds = nil
		return l.machine.Holds(r, func(h state.Hold) { l.holds = append(l.holds, h) })
	})
}

// hold gives a session an exclusive lease: to one whose leases hold, on a directory
// that others do not fight for.
func (l *leader) hold(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	if dir := moraine.InodeID(c.req.GetHold().GetDirectory()); dir != 0 {
		if err := l.lease.mayHold(c.req.Session, c.req.LeaseEpoch, dir); err != nil {
			return nil, err
		}
	}
	return l.propose(ctx, c.caller, c.req)
}

// mayHold refuses a session that has no standing, as whoever waits for the directory
// has to tell it so.
func (t *leaseTable) mayHold(session, epoch uint64, dir moraine.InodeID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	h := t.sessions[session]
	switch {
	case h == nil || h.epoch != epoch || h.ended || t.ranOut(h, now):
		return &moraine.Error{Ref: dir.String(), Kind: moraine.Busy, Err: fmt.Errorf("the session holds no leases now")}
	case t.heat[dir].hot(now):
		return &moraine.Error{Ref: dir.String(), Kind: moraine.Busy, Err: fmt.Errorf("many work in the directory")}
	}
	return nil
}
