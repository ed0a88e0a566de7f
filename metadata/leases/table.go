// Package leases knows what sessions may answer from their caches, and holds back the answers
// that would contradict them.
//
// The path of a change: the store applies an entry -> Table.Apply finds the sessions that hold a
// lease on what the entry touched, queues a recall for each, and notes the change as pending ->
// each session gets the recall with Keeper.Poll, drops what it named, and acknowledges it with
// its next Poll -> the last acknowledgement ends the pending change. An answer that shows the
// change waits for that in Keeper.ResolveSeen or ResolveResult, or until the leases have run out.
//
// A Table lives as long as its server, and applies every entry. A Keeper lives as long as one
// leadership. Exclusive leases on directories (exclusive.go) are in the state; the Keeper asks
// for those back that are in somebody's way (WantBack).
package leases

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// leaseTerm is how long leases hold after their last renewal, at most: no longer
	// than sessions do, so that whoever may trust one has a session that the next
	// leader finds in the state. A client trusts them for three quarters of the term,
	// counted from when it asked.
	leaseTerm = 3 * time.Second
	// maxLeases bounds the leases of one session.
	maxLeases = 16 << 10
	// maxRecalls bounds the recalls that a session has not carried out; past it its
	// standing ends.
	maxRecalls = 1024
	// maxSettling bounds the changes between a state and the present that a grant
	// is held against; past it nothing is granted.
	maxSettling = 4096
)

// Table knows what the sessions may answer from their caches, and holds back
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
type Table struct {
	metrics *lead.Metrics
	now     func() time.Time
	term    time.Duration

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
	// leaseCount is how many leases there are.
	leaseCount int
	heat       map[moraine.InodeID]heat // Poll recalled lately
	// exclusive are the exclusive leases, exclusiveCount how many there are.
	exclusive      map[moraine.InodeID]*exclusiveLease
	exclusiveCount atomic.Int64
	// shown is what pending changes would show, pendings are all of them.
	shown    map[shownKey][]*pending
	pendings map[*pending]struct{}
	// recovering are the sessions of the last leader that have not come back,
	// recoverBy when their leases have ended, recovered is closed when none is left.
	recovering map[uint64]struct{}
	recoverBy  time.Time
	recovered  chan struct{}
}

func NewTable(m *lead.Metrics, now func() time.Time, sessionTimeout time.Duration) *Table {
	return &Table{metrics: m, now: now, term: min(leaseTerm, sessionTimeout), changes: changes{limit: maxChanges}}
}

// Lead begins to grant. sessions are those of the state that may hold leases.
func (t *Table) Lead(sessions []uint64, holds []record.Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leading = true
	t.sessions, t.slots, t.free = map[uint64]*holder{}, nil, nil
	t.one, t.many, t.leaseCount = map[moraine.InodeID]uint32{}, map[moraine.InodeID][]uint32{}, 0
	t.heat = map[moraine.InodeID]heat{}
	t.shown, t.pendings = map[shownKey][]*pending{}, map[*pending]struct{}{}
	t.recovering, t.recovered, t.recoverBy = map[uint64]struct{}{}, make(chan struct{}), t.now().Add(leaseTerm)
	for _, id := range sessions {
		t.recovering[id] = struct{}{}
	}
	t.leadHolds(holds)
	t.settleRecovery()
}

// Follow forgets what only a leader knows.
func (t *Table) Follow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leading = false
	t.quiet.Store(false)
	for _, h := range t.sessions {
		close(h.wake)
	}
	t.dropHolds()
	t.sessions, t.slots, t.one, t.many, t.shown, t.pendings, t.recovering = nil, nil, nil, nil, nil, nil, nil
	t.metrics.Leases.Set(0)
}

// Count is how many leases there are.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaseCount
}

// Exclusives is how many exclusive leases there are.
func (t *Table) Exclusives() int64 { return t.exclusiveCount.Load() }

// settleRecovery ends the recovery where it is over. The mutex is held.
func (t *Table) settleRecovery() bool {
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

// Apply takes over what an entry touched, before anybody can see it. commands are
// those of the entry, results what they gave.
func (t *Table) Apply(index, count uint64, commands []*statepb.Command, results []state.Result) {
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
		if len(results[i].Events.Holds) > 0 {
			t.changeHolds(results[i].Events.Holds)
		}
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
func (t *Table) recall(req *wire.MetaRequest, r *state.Result) {
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

// excepted reports whether the session is the one that asked for the change, and
// answers nothing from its cache that this touches.
func (h *holder) excepted(req *wire.MetaRequest, touch *kvtx.Touch) bool {
	if req.GetSession() != h.id || req.GetLeaseEpoch() != h.epoch {
		return false
	}
	named := transport.Named(req)
	return slices.Contains(named, uint64(touch.Lease)) || slices.Contains(named, uint64(touch.Inode))
}

// send queues a recall; where touches is nil, or too many are queued, the standing
// ends. The mutex is held.
func (t *Table) send(h *holder, touches []*wire.Touch) {
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

func touchToWire(t *kvtx.Touch) *wire.Touch {
	return &wire.Touch{Lease: uint64(t.Lease), Inode: uint64(t.Inode), Name: t.Name,
		Gone: t.Name == "" && (t.Change == kvtx.Removed || t.Change == kvtx.Taken)}
}

// InUse adds how much of the tables is used, by name.
func (t *Table) InUse(use map[string]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	use["leases"], use["exclusive leases"] = int64(t.leaseCount), t.exclusiveCount.Load()
	use["sessions that hold leases"] = int64(len(t.sessions))
	use["changes that wait for holders of leases"] = int64(len(t.pendings))
	use["names that such changes show"] = int64(len(t.shown))
	use["leases recalled lately"] = int64(len(t.heat))
}
