package leases

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// maxRecallWait bounds how long the leader delays its answer to a session that polls for recalls.
const maxRecallWait = 30 * time.Second

// Sessions are the live sessions of the leader.
type Sessions interface {
	// LeasesOf reports whether a live session is confined to a directory, and whether it may have
	// cache leases.
	LeasesOf(id uint64) (confined, may bool, err error)
	// RenewLeases renews a live session for a full term, and reports the same.
	RenewLeases(id uint64, now time.Time) (confined, may bool, err error)
}

// Keeper manages the cache leases during one leadership. It answers the sessions' polls, and delays
// answers that a client's cache may contradict.
type Keeper struct {
	*lead.Term
	table    *Table
	sessions Sessions
	// recalled is what callers wait for: cache leases of other sessions, each until the session
	// answers or its leases expire.
	recalled limit.Resource
	// delegated is what requests wait for that met a delegation.
	delegated limit.Resource
}

// NewKeeper starts to manage leases for a leadership.
func NewKeeper(t *lead.Term, table *Table, sessions Sessions) *Keeper {
	reports := limit.NewReporter(t.Log, t.Metrics.WaitsExceeded)
	recalled := limit.Resource{Name: "recalled cache leases", Advice: "other clients do not answer a recall, and each delays the answer for a lease term", Reports: reports}
	delegated := limit.Resource{Name: "recalled delegations", Advice: "a client that has the directory for itself does not give it back, which delays the answer for a lease term", Reports: reports}
	return &Keeper{Term: t, table: table, sessions: sessions, recalled: recalled, delegated: delegated}
}

// Poll begins, renews and polls a session's registration.
func (k *Keeper) Poll(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	req := c.Req.GetLeases()
	began := k.Clock.Now()
	if req.Begin || req.Renew { // only the present leader may make promises
		if err := k.Store.ReadBarrier(ctx); err != nil {
			return nil, err
		}
	}
	confined, may, err := k.sessions.LeasesOf(c.Req.Session)
	if err == nil && (req.Begin || req.Renew) {
		// A session with valid leases must stay live: see leaseTerm.
		confined, may, err = k.sessions.RenewLeases(c.Req.Session, began)
	}
	if err != nil {
		return nil, err
	}
	if !may {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the session was opened without cache leases")}
	}
	if req.Begin {
		if err := k.table.begin(c.Req.Session, confined, began, req); err != nil {
			return nil, err
		}
	}
	reply, err := k.recalls(ctx, c.Req.Session, began, req)
	if err != nil {
		return nil, err
	}
	reply.TermMillis = uint64(k.table.term.Milliseconds())
	return &wire.MetaResponse{Result: &wire.MetaResponse_Leases{Leases: reply}}, nil
}

// recalls answers with the recalls that a session must carry out, and waits for some as long as the
// request allows.
func (k *Keeper) recalls(ctx context.Context, id uint64, began time.Time, req *wire.Leases) (*wire.LeasesReply, error) {
	wait := min(time.Duration(req.WaitMillis)*time.Millisecond, maxRecallWait)
	var over <-chan time.Time
	if wait > 0 {
		over = k.Clock.After(wait)
	}
	for first := true; ; first = false {
		reply, wake := k.table.poll(id, began, req, first)
		if wait <= 0 || reply.Ended || len(reply.Recalls)+len(reply.Delegations) > 0 {
			return reply, nil
		}
		select {
		case <-wake:
		case <-over:
			wait = 0
		case <-ctx.Done():
			return nil, lead.ContextError("metadata.leases", ctx)
		case <-k.Done:
			return nil, lead.ErrStopped
		}
	}
}

// begin makes a registration. An existing one stays, because the request is then a retry. Only a
// leader that has just proved that it leads may call it.
func (t *Table) begin(id uint64, confined bool, began time.Time, req *wire.Leases) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.leading {
		return lead.ErrStopped
	}
	if old := t.sessions[id]; old != nil && req.Epoch <= old.epoch {
		if req.Epoch == old.epoch {
			return nil
		}
		return &moraine.Error{Kind: moraine.Stale, Err: fmt.Errorf("epoch %d of the session's cache leases has ended: the current one is %d", req.Epoch, old.epoch)}
	}
	if _, late := t.wantedOf(id, nil); late {
		return &moraine.Error{Kind: moraine.Busy, Err: fmt.Errorf("the session must end a delegation first, which others wait for")}
	}
	t.drop(t.sessions[id]) // the session no longer trusts anything of the old one
	h := &holder{id: id, epoch: req.Epoch, confined: confined, renewed: began}
	t.add(h)
	t.reclaim(h, req)
	delete(t.recovering, id)
	t.settleRecovery()
	return nil
}

// reclaim gives a session its former leases again and recalls what it has
// missed. A confined session drops them all instead. The leader cannot tell
// here whether an inode that it names is below its directory. A lease on
// another one would show names and delay its owner. The caller holds the mutex.
func (t *Table) reclaim(h *holder, req *wire.Leases) {
	if len(req.Held) == 0 {
		return
	}
	t.metrics.Reclaims.Inc()
	if h.confined || req.Exact == 0 || !t.changes.covers(req.Exact) || len(req.Held) > maxLeases {
		h.recallAll()
		return
	}
	for _, lease := range req.Held {
		t.holds(h, moraine.InodeID(lease))
	}
	var missed []*wire.Touch
	delegated := false
	t.changes.since(req.Exact, func(c *Change) bool {
		if _, held := h.leases[c.Touch.Lease]; held && !c.moved() {
			missed = append(missed, touchToWire(&c.Touch))
			delegated = delegated || c.Touch.Change == kvtx.Delegated
		}
		return len(missed) < maxSettling
	})
	switch {
	case len(missed) >= maxSettling || delegated:
		t.release(h)
		h.recallAll()
	case len(missed) > 0:
		t.send(h, missed)
	}
}

// recallAll makes a session that begins drop everything that it had cached.
func (h *holder) recallAll() {
	h.sent++
	h.recalls = append(h.recalls, &wire.Recall{Number: h.sent, All: true})
}

// poll returns the recalls after req.Ack, and a channel that is closed when there are more. If
// first is set it also processes the request's own fields.
func (t *Table) poll(id uint64, began time.Time, req *wire.Leases, first bool) (*wire.LeasesReply, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dirs, late := t.wantedOf(id, req.Ending)
	h := t.sessions[id]
	if h == nil || h.epoch != req.Epoch || h.ended || t.ranOut(h, t.now()) {
		return &wire.LeasesReply{Ended: true, Delegations: dirs}, nil
	}
	reply := &wire.LeasesReply{Exact: t.changes.last, Renewed: req.Begin, Delegations: dirs}
	if first {
		t.ack(h, req.Ack)
		if req.Returns > h.returns { // otherwise the session may have them again
			h.returns = req.Returns
			for _, lease := range req.Returned {
				t.unhold(h, moraine.InodeID(lease))
			}
		}
		if req.Renew {
			reply.Renewed = !late && h.renew(began)
		}
	}
	for _, r := range h.recalls {
		if r.Number > req.Ack {
			reply.Recalls = append(reply.Recalls, r)
		}
	}
	if len(reply.Recalls) > 0 {
		h.carried = h.sent
	}
	return reply, h.wake
}

// renew renews the session's leases for a term. It refuses if the session has
// not carried out the recalls from before the last renewal. Such a session does
// not respond, and others wait for it.
func (h *holder) renew(began time.Time) bool {
	if h.acked < h.mark {
		return false
	}
	h.mark = h.carried
	if began.After(h.renewed) {
		h.renewed = began
	}
	return true
}

// Grant leases the items that an answer shows to the session, under the registration that the
// request names. applied is the entry that the answer reflects. It grants nothing that was touched
// since, and nothing if the registration has ended.
func (t *Table) Grant(id, epoch uint64, seen *kvtx.Seen, applied uint64) *wire.LeaseGrant {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.sessions[id]
	if h == nil || h.epoch != epoch || h.ended || t.ranOut(h, t.now()) || !t.changes.covers(applied) {
		return nil
	}
	wanted := make(map[moraine.InodeID]struct{}, 4)
	for i := range seen.Touches {
		if lease := seen.Touches[i].Lease; lease != 0 {
			wanted[lease] = struct{}{}
		}
	}
	looked := 0
	t.changes.since(applied, func(c *Change) bool {
		if c.moved() && h.confined {
			clear(wanted)
		}
		delete(wanted, c.Touch.Lease)
		looked++
		return looked < maxSettling && len(wanted) > 0
	})
	if looked >= maxSettling {
		return nil
	}
	g, now := &wire.LeaseGrant{Epoch: epoch}, t.now()
	for lease := range wanted {
		if !t.heat[lease].hot(now) && t.holds(h, lease) {
			g.Leases = append(g.Leases, uint64(lease))
		}
	}
	t.metrics.LeasesGranted.Add(float64(len(g.Leases)))
	return g
}

// OwnChanges reports to a session with a cache what its own command changed.
func OwnChanges(req *wire.MetaRequest, r *state.Result) *wire.LeaseGrant {
	g := &wire.LeaseGrant{Epoch: req.LeaseEpoch, Complete: !r.Repeated}
	for i := range r.Touched {
		g.Touched = append(g.Touched, touchToWire(&r.Touched[i]))
	}
	return g
}
