package metadata

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// leaseTerm is how long leases hold after their last renewal. A client trusts
	// them for three quarters of it, counted from when it asked.
	leaseTerm = 3 * time.Second
	// maxLeases bounds the leases of one session.
	maxLeases = 16 << 10
	// maxRecalls bounds the recalls that a session has not carried out; past it its
	// standing ends.
	maxRecalls = 1024
	// maxSettling bounds the changes between a state and the present that a grant
	// is held against; past it nothing is granted.
	maxSettling = 4096
	// A lease that was recalled hotRecalls times within hotWindow is not granted for
	// hotPause: in a directory where many work, each change would be a message to all
	// of them, and of little use to any.
	hotRecalls = 16
	hotWindow  = time.Second
	hotPause   = 3 * time.Second
)

// leaseTable knows what the sessions may answer from their caches, and holds back
// what would contradict them. The rules, each of which a client relies on:
//
//   - Before a state that an entry changed can be seen here, apply has the change
//     recalled from every session that holds a lease on it, and noted as pending:
//     until each of them has acknowledged, or its leases have run out, no answer
//     that shows it leaves (settle). The session that asked for the change is left
//     out as far as it said that it answers nothing from its cache meanwhile
//     (transport.Named).
//   - A lease is granted on a state only if nothing that it covers was touched
//     since (grant). What is touched later is recalled.
//   - Leases hold for a term after the last renewal. A session whose term has
//     ended holds nothing; it comes back with a new standing.
//   - A session that comes back (begin), here or from another leader, says what it
//     holds and up to which entry that is exact. It gets a recall of what was
//     touched since, from the changes that every server remembers; where they do
//     not reach back as far, of everything. It trusts nothing while it asks.
//   - A new leader does not know who holds what: until every session that may hold
//     leases has come back, or a term has passed, nothing is answered that could
//     show a change that the last leader was still recalling.
//
// It lives as long as the server; what is not the changes is there only while the
// server leads. Methods may be called concurrently, but for apply.
type leaseTable struct {
	metrics *Metrics
	now     func() time.Time

	// quiet says that this server leads and that no answer has to wait. It is false
	// before a change that must be waited for can be seen.
	quiet atomic.Bool

	mu      sync.Mutex
	changes changes
	// changed is closed by the next entry that touched something; nil where nobody
	// waits for one.
	changed chan struct{}

	leading  bool
	sessions map[uint64]*holder
	slots    []*holder // by the numbers in one and many; nil where free
	free     []uint32
	// one and many are who holds a lease: nearly always there is one holder.
	one  map[moraine.InodeID]uint32
	many map[moraine.InodeID][]uint32
	// held is how many leases there are.
	held int
	heat map[moraine.InodeID]heat // leases recalled lately
	// shown is what pending changes would show, pendings are all of them.
	shown    map[shownKey][]*pending
	pendings map[*pending]struct{}
	// recovering are the sessions of the last leader that have not come back,
	// recoverBy when their leases have ended, recovered is closed when none is left.
	recovering map[uint64]struct{}
	recoverBy  time.Time
	recovered  chan struct{}
}

// holder is one session's standing.
type holder struct {
	id       uint64
	slot     uint32
	epoch    uint64
	confined bool
	renewed  time.Time
	leases   map[moraine.InodeID]struct{}

	sent, acked uint64 // numbers of the last recall, and of the last carried out
	recalls     []*wire.Recall
	waits       []wait // pending changes that wait for this session, in order
	wake        chan struct{}
	// told is the last recall that any answer carried, mark that as of the last
	// renewal: who has not carried that out by the next is not renewed.
	told, mark uint64
	returns    uint64 // number of the last request that returned leases
	// ended says that the session has to begin anew. Until it does, or its term has
	// ended, it may still trust what it holds.
	ended bool
}

// wait is a pending change that ends with the acknowledgement of a number.
type wait struct {
	p      *pending
	number uint64
}

// pending is what a command changed and not everybody knows of.
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

func keyOf(t *state.Touch) shownKey {
	if t.Name != "" {
		return shownKey{t.Lease, t.Name}
	}
	return shownKey{inode: t.Inode}
}

func newLeaseTable(m *Metrics, now func() time.Time) *leaseTable {
	return &leaseTable{metrics: m, now: now, changes: changes{limit: maxChanges}}
}

// lead begins to grant. sessions are those of the state that may hold leases.
func (t *leaseTable) lead(sessions []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leading = true
	t.sessions, t.slots, t.free = map[uint64]*holder{}, nil, nil
	t.one, t.many, t.held = map[moraine.InodeID]uint32{}, map[moraine.InodeID][]uint32{}, 0
	t.heat = map[moraine.InodeID]heat{}
	t.shown, t.pendings = map[shownKey][]*pending{}, map[*pending]struct{}{}
	t.recovering, t.recovered, t.recoverBy = map[uint64]struct{}{}, make(chan struct{}), t.now().Add(leaseTerm)
	for _, id := range sessions {
		t.recovering[id] = struct{}{}
	}
	t.settleRecovery()
}

// follow forgets what only a leader knows.
func (t *leaseTable) follow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leading = false
	t.quiet.Store(false)
	for _, h := range t.sessions {
		close(h.wake)
	}
	t.sessions, t.slots, t.one, t.many, t.shown, t.pendings, t.recovering = nil, nil, nil, nil, nil, nil, nil
	t.metrics.Leases.Set(0)
}

// count is how many leases there are.
func (t *leaseTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// settleRecovery ends the recovery where it is over. The mutex is held.
func (t *leaseTable) settleRecovery() bool {
	if t.recovered == nil {
		return true
	}
	if len(t.recovering) > 0 && t.now().Before(t.recoverBy) {
		return false
	}
	close(t.recovered)
	t.recovered, t.recovering = nil, nil
	t.quiet.Store(len(t.pendings) == 0)
	return true
}

// apply takes over what an entry touched, before anybody can see it. commands are
// those of the entry, results what they gave.
func (t *leaseTable) apply(index, count uint64, commands []*statepb.Command, results []state.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changes.note(index, count, results)
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	if !t.leading {
		return
	}
	for i := range results {
		req := commands[i].GetRequest()
		if _, closes := req.GetOp().(*wire.MetaRequest_CloseSession); closes && results[i].Response.GetError() == nil {
			t.drop(t.sessions[req.GetSession()]) // it trusted nothing any more when it asked
			delete(t.recovering, req.GetSession())
		}
		if len(results[i].Touched) > 0 && len(t.sessions) > 0 {
			t.recall(req, &results[i])
		}
	}
}

// recall takes what a command touched from those who hold it. The mutex is held.
func (t *leaseTable) recall(req *wire.MetaRequest, r *state.Result) {
	var p *pending
	affected := map[*holder][]*wire.Touch(nil)
	for i := range r.Touched {
		touch := &r.Touched[i]
		for _, slot := range t.holdersOf(touch.Lease) {
			h := t.slots[slot]
			if h.excepted(req, touch) {
				continue
			}
			if affected == nil {
				affected = make(map[*holder][]*wire.Touch, 1)
			}
			affected[h] = append(affected[h], touchToWire(touch))
		}
	}
	if r.Events.TreeMoved {
		for _, h := range t.sessions {
			if h.confined { // what it may see at all may have changed
				if affected == nil {
					affected = make(map[*holder][]*wire.Touch, 1)
				}
				affected[h] = nil
			}
		}
	}
	now := t.now()
	t.warm(affected, now)
	for h, touches := range affected {
		if t.ranOut(h, now) {
			continue
		}
		if p == nil {
			p = &pending{done: make(chan struct{})}
		}
		t.send(h, touches)
		h.waits = append(h.waits, wait{p, h.sent})
		p.left++
		p.holders = append(p.holders, h)
	}
	if p != nil {
		t.hold(p, r.Touched)
	}
}

// heat is how often a lease was recalled since a time.
type heat struct {
	count int
	since time.Time
}

// warm counts the leases that one command has recalled. The mutex is held.
func (t *leaseTable) warm(affected map[*holder][]*wire.Touch, now time.Time) {
	counted := map[uint64]bool(nil)
	for _, touches := range affected {
		for _, touch := range touches {
			if counted[touch.Lease] {
				continue
			}
			if counted == nil {
				counted = make(map[uint64]bool, 2)
			}
			counted[touch.Lease] = true
			lease := moraine.InodeID(touch.Lease)
			h := t.heat[lease]
			if now.Sub(h.since) > hotWindow && !h.hot(now) {
				h = heat{since: now}
			}
			if h.count++; h.count == hotRecalls {
				h.since = now
			}
			t.heat[lease] = h
		}
	}
}

// hot reports whether a lease is not to be granted now.
func (h heat) hot(now time.Time) bool { return h.count >= hotRecalls && now.Sub(h.since) <= hotPause }

// excepted reports whether the session is the one that asked for the change, and
// answers nothing from its cache that this touches.
func (h *holder) excepted(req *wire.MetaRequest, touch *state.Touch) bool {
	if req.GetSession() != h.id || req.GetLeaseEpoch() != h.epoch {
		return false
	}
	named := transport.Named(req)
	return slices.Contains(named, uint64(touch.Lease)) || slices.Contains(named, uint64(touch.Inode))
}

// send queues a recall; where touches is nil, or too many are queued, the standing
// ends. The mutex is held.
func (t *leaseTable) send(h *holder, touches []*wire.Touch) {
	h.sent++
	t.metrics.Recalls.Inc()
	if touches == nil || len(h.recalls) >= maxRecalls {
		h.ended, h.recalls = true, nil
	} else {
		h.recalls = append(h.recalls, &wire.Recall{Number: h.sent, Touches: touches})
	}
	close(h.wake)
	h.wake = make(chan struct{})
}

// hold keeps back what shows the change. The mutex is held.
func (t *leaseTable) hold(p *pending, touches []state.Touch) {
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

// satisfy ends one wait of a pending change. The mutex is held.
func (t *leaseTable) satisfy(p *pending) {
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

// ack notes that a session has carried out its recalls up to a number. The mutex
// is held.
func (t *leaseTable) ack(h *holder, number uint64) {
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

// ranOut drops a session's standing where its term has ended. The mutex is held.
func (t *leaseTable) ranOut(h *holder, now time.Time) bool {
	if now.Sub(h.renewed) <= leaseTerm {
		return false
	}
	t.metrics.LeasesRanOut.Inc()
	t.drop(h)
	return true
}

// sweep drops the standings that have ended, so that they take no memory.
func (t *leaseTable) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for _, h := range t.sessions {
		t.ranOut(h, now)
	}
	for lease, h := range t.heat {
		if now.Sub(h.since) > hotPause {
			delete(t.heat, lease)
		}
	}
	t.metrics.Leases.Set(float64(t.held))
	t.metrics.LeaseSessions.Set(float64(len(t.sessions)))
}

// drop ends a standing, nil for none. The mutex is held.
func (t *leaseTable) drop(h *holder) {
	if h == nil || t.sessions[h.id] != h {
		return
	}
	delete(t.sessions, h.id)
	t.release(h)
	t.slots[h.slot] = nil
	t.free = append(t.free, h.slot)
	for _, w := range h.waits {
		t.satisfy(w.p)
	}
	h.waits, h.recalls = nil, nil
	close(h.wake)
}

// release takes back all leases of a session. The mutex is held.
func (t *leaseTable) release(h *holder) {
	for lease := range h.leases {
		t.unhold(h, lease)
	}
}

// add enters a standing that holds nothing. The mutex is held.
func (t *leaseTable) add(h *holder) {
	if n := len(t.free); n > 0 {
		h.slot, t.free = t.free[n-1], t.free[:n-1]
		t.slots[h.slot] = h
	} else {
		h.slot = uint32(len(t.slots))
		t.slots = append(t.slots, h)
	}
	h.leases, h.wake = make(map[moraine.InodeID]struct{}), make(chan struct{})
	t.sessions[h.id] = h
}

// holdersOf returns the slots of who holds a lease. The mutex is held.
func (t *leaseTable) holdersOf(lease moraine.InodeID) []uint32 {
	if slot, ok := t.one[lease]; ok {
		return []uint32{slot}
	}
	return t.many[lease]
}

// holds enters a lease; false where the session has too many. The mutex is held.
func (t *leaseTable) holds(h *holder, lease moraine.InodeID) bool {
	if _, ok := h.leases[lease]; ok {
		return true
	}
	if len(h.leases) >= maxLeases {
		return false
	}
	h.leases[lease] = struct{}{}
	t.held++
	if other, ok := t.one[lease]; ok {
		delete(t.one, lease)
		t.many[lease] = []uint32{other, h.slot}
	} else if others, ok := t.many[lease]; ok {
		t.many[lease] = append(others, h.slot)
	} else {
		t.one[lease] = h.slot
	}
	return true
}

// unhold takes a lease back. The mutex is held.
func (t *leaseTable) unhold(h *holder, lease moraine.InodeID) {
	if _, ok := h.leases[lease]; !ok {
		return
	}
	delete(h.leases, lease)
	t.held--
	if slot, ok := t.one[lease]; ok && slot == h.slot {
		delete(t.one, lease)
		return
	}
	rest := slices.DeleteFunc(t.many[lease], func(s uint32) bool { return s == h.slot })
	if len(rest) == 1 {
		delete(t.many, lease)
		t.one[lease] = rest[0]
	} else {
		t.many[lease] = rest
	}
}

func touchToWire(t *state.Touch) *wire.Touch {
	return &wire.Touch{Lease: uint64(t.Lease), Inode: uint64(t.Inode), Name: t.Name,
		Gone: t.Name == "" && t.Change == state.Removed}
}
