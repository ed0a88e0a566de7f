// Package leases knows what sessions may answer from their caches, and delays answers that would
// contradict those caches.
//
// The path of a change: the store applies an entry. Table.Apply finds the sessions with a lease on
// what the entry touched, queues a recall for each, and records the change as pending. Each session
// gets the recall with Keeper.Poll, drops what it names, and acknowledges it with its next Poll.
// The last acknowledgement ends the pending change. An answer that shows the change waits for that
// in Keeper.ResolveSeen or ResolveResult, or until the leases have expired.
//
// A Table lives as long as its server and applies every entry. A Keeper lives as long as one
// leadership.
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
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// leaseTerm is the longest validity of leases after their last renewal. It is not longer than a
	// session's, so that the next leader finds every session with valid leases in the state. A
	// client trusts its leases for three quarters of the term, counted from its request.
	leaseTerm = 3 * time.Second
	// maxLeases bounds the leases of one session.
	maxLeases = 16 << 10
	// maxRecalls bounds the recalls that a session has not carried out. Above it the registration
	// ends.
	maxRecalls = 1024
	// maxSettling bounds the changes between a state and the present against which a grant is
	// checked. Above it nothing is granted.
	maxSettling = 4096
)

// Table knows what the sessions may answer from their caches, and delays answers that would
// contradict them. Clients rely on each of these rules:
//
//   - Before readers here can see a state that an entry changed, Apply recalls the change from
//     every session with a lease on it and records it as pending. No answer that shows the change
//     leaves until each of them has acknowledged, or its leases have expired (resolve). The session
//     that requested the change gets no recall for what it said that it does not answer from its
//     cache meanwhile (transport.Named).
//   - A lease is granted on a state only if nothing that it covers was touched since (Grant). Later
//     touches are recalled.
//   - Leases are valid for a term after the last renewal. A session whose term has ended has no
//     leases; it returns with a new registration.
//   - A session that returns (begin), to this or another leader, lists its leases and the entry up
//     to which its cache is exact. It gets a recall of everything touched since, from the changes
//     that every server remembers. If they do not reach back that far, it gets a recall of
//     everything. It trusts nothing meanwhile.
//   - A new leader does not know which session has which leases, nor what the last leader was still
//     recalling. It delays answers that could show such a change until every session that may have
//     leases has returned, or a term has passed.
//
// It lives as long as the server. Everything except the changes exists only while the server leads.
// Methods may be called concurrently, except Apply.
type Table struct {
	metrics *lead.Metrics
	now     func() time.Time
	term    time.Duration

	// quiet says that this server leads and that no answer must wait. It becomes false before
	// readers can see a change that must be waited for.
	quiet atomic.Bool

	mu      sync.Mutex
	changes changes
	// changed is closed by the next entry that touched something; nil if nobody waits for it.
	changed chan struct{}

	leading  bool
	sessions map[uint64]*holder
	slots    []*holder // by the numbers in one and many; nil if free
	free     []uint32
	// one and many are the holders of a lease. Nearly always there is one holder.
	one  map[moraine.InodeID]uint32
	many map[moraine.InodeID][]uint32
	// leaseCount is the number of leases.
	leaseCount int
	heat       map[moraine.InodeID]heat // recent recalls by lease
	// shown has the pending changes by what shows them; pendings has all of them.
	shown    map[shownKey][]*pending
	pendings map[*pending]struct{}
	// recovering are the sessions of the last leader that have not returned. recoverBy is when
	// their leases have expired. recovered is closed when none is left.
	recovering map[uint64]struct{}
	recoverBy  time.Time
	recovered  chan struct{}
	// recalls has the delegations that somebody waits for, and wanted when the delegation of a
	// directory was last recalled.
	recalls map[moraine.InodeID]*recalled
	wanted  map[moraine.InodeID]time.Time
	// distrusted has the sessions whose delegations were revoked, and when.
	distrusted map[uint64]time.Time
}

// NewTable makes the table of a server that does not lead.
func NewTable(m *lead.Metrics, now func() time.Time, sessionTimeout time.Duration) *Table {
	return &Table{metrics: m, now: now, term: min(leaseTerm, sessionTimeout), changes: changes{limit: maxChanges}}
}

// Lead starts to grant leases. sessions are the sessions in the state that may have leases.
func (t *Table) Lead(sessions []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leading = true
	t.sessions, t.slots, t.free = map[uint64]*holder{}, nil, nil
	t.one, t.many, t.leaseCount = map[moraine.InodeID]uint32{}, map[moraine.InodeID][]uint32{}, 0
	t.heat = map[moraine.InodeID]heat{}
	t.shown, t.pendings = map[shownKey][]*pending{}, map[*pending]struct{}{}
	t.recalls, t.wanted, t.distrusted = map[moraine.InodeID]*recalled{}, map[moraine.InodeID]time.Time{}, map[uint64]time.Time{}
	t.recovering, t.recovered, t.recoverBy = map[uint64]struct{}{}, make(chan struct{}), t.now().Add(leaseTerm)
	for _, id := range sessions {
		t.recovering[id] = struct{}{}
	}
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
	t.sessions, t.slots, t.one, t.many, t.shown, t.pendings, t.recovering = nil, nil, nil, nil, nil, nil, nil
	for _, r := range t.recalls {
		close(r.over)
	}
	t.recalls, t.wanted, t.distrusted = nil, nil, nil
	t.metrics.Leases.Set(0)
}

// Count returns the number of leases.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaseCount
}

// settleRecovery ends the recovery if nothing is left of it. The caller holds the mutex.
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

// Apply records what an entry touched, before any reader can see it. commands are the entry's
// commands, results their results.
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
		if _, closes := req.GetOp().(*wire.MetaRequest_CloseSession); closes && results[i].Response.GetError() == nil {
			t.drop(t.sessions[req.GetSession()]) // it trusted nothing any more when it sent the request
			delete(t.recovering, req.GetSession())
		}
		if len(results[i].Touched) > 0 && len(t.sessions) > 0 {
			t.recall(req, &results[i])
		}
	}
}

// recall recalls what a command touched from the sessions with a lease. The caller holds the mutex.
func (t *Table) recall(req *wire.MetaRequest, r *state.Result) {
	var p *pending
	affected := map[*holder][]*wire.Touch(nil)
	var gone []*holder // must drop everything
	named := namedOnce{req: req}
	for i := range r.Touched {
		touch := &r.Touched[i]
		for _, slot := range t.holdersOf(touch.Lease) {
			h := t.slots[slot]
			if h.excepted(&named, touch) {
				continue
			}
			if affected == nil {
				affected = make(map[*holder][]*wire.Touch, 1)
			}
			if touch.Change == kvtx.Delegated {
				gone = append(gone, h)
			}
			affected[h] = append(affected[h], touchToWire(touch))
		}
	}
	if r.Events.TreeMoved {
		for _, h := range t.sessions {
			if h.confined { // what it may see may have changed entirely
				if affected == nil {
					affected = make(map[*holder][]*wire.Touch, 1)
				}
				affected[h] = nil
			}
		}
	}
	now := t.now()
	t.warm(affected, now)
	for _, h := range gone {
		affected[h] = nil
	}
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

// excepted reports whether the session requested the change and answers nothing that it touches
// from its cache.
func (h *holder) excepted(named *namedOnce, touch *kvtx.Touch) bool {
	if named.req.GetSession() != h.id || named.req.GetLeaseEpoch() != h.epoch {
		return false
	}
	return named.has(uint64(touch.Lease)) || named.has(uint64(touch.Inode))
}

// namedOnce has what a request names. A batch names many inodes, and touches more.
type namedOnce struct {
	req    *wire.MetaRequest
	inodes []uint64 // in order; nil until has is called
}

func (n *namedOnce) has(inode uint64) bool {
	if n.inodes == nil {
		n.inodes = slices.Clone(transport.Named(n.req))
		slices.Sort(n.inodes)
	}
	_, found := slices.BinarySearch(n.inodes, inode)
	return found
}

// send queues a recall. If touches is nil, or too many are queued, the registration ends. The
// caller holds the mutex.
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
		Gone: t.Name == "" && t.Change == kvtx.Removed}
}

// InUse adds the sizes of the tables, by name.
func (t *Table) InUse(use map[string]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	use["leases"] = int64(t.leaseCount)
	use["sessions that hold leases"] = int64(len(t.sessions))
	use["changes that wait for holders of leases"] = int64(len(t.pendings))
	use["names that such changes show"] = int64(len(t.shown))
	use["leases recalled lately"] = int64(len(t.heat))
	use["delegations that requests wait for"] = int64(len(t.recalls))
	use["delegations recalled lately"] = int64(len(t.wanted))
}
