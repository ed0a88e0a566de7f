package leases

import (
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// holder is one session's registration for cache leases.
type holder struct {
	id       uint64
	slot     uint32
	epoch    uint64
	confined bool
	renewed  time.Time
	leases   map[moraine.InodeID]struct{}

	sent, acked uint64 // numbers of the last recall sent and the last one carried out
	recalls     []*wire.Recall
	waits       []wait // pending changes that wait for this session, in order
	wake        chan struct{}
	// carried is the last recall that any answer carried, and mark its value at the last renewal. A
	// session that has not carried out mark by the next renewal is not renewed.
	carried, mark uint64
	returns       uint64 // number of the last request that returned leases
	// settled is the last orphan whose number the session may get (Settled), and next the one after
	// it, once the recall number nextAfter is carried out.
	settled, next, nextAfter uint64
	// ended says that the session must begin again. Until it does, or its term ends, it may still
	// trust its leases.
	ended bool
}

// ranOut drops the registration of a session whose term has ended. The caller holds the mutex.
func (t *Table) ranOut(h *holder, now time.Time) bool {
	if now.Sub(h.renewed) <= t.term {
		return false
	}
	t.metrics.LeasesRanOut.Inc()
	t.drop(h)
	return true
}

// Settled returns the number of the last orphan that a reply to a session may name, 0 if that is not
// known. last is the number of the last one in the state. The session then has carried out the recalls
// of all names that these files had: it opens none of them by a name in its cache any more.
func (t *Table) Settled(id, last uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.sessions[id]
	switch _, recovering := t.recovering[id]; {
	case !t.leading, recovering && !t.settleRecovery():
		return 0
	case h == nil || t.ranOut(h, t.now()):
		return last // it trusts nothing in its cache
	case h.ended:
		return h.settled
	}
	if h.acked >= h.nextAfter {
		h.settled = max(h.settled, h.next)
		h.next, h.nextAfter = last, h.sent
	}
	if h.acked >= h.nextAfter {
		h.settled = h.next
	}
	return h.settled
}

// Sweep frees the registrations that have ended.
func (t *Table) Sweep() {
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
	for dir, at := range t.wanted {
		if now.Sub(at) > wantedPause {
			delete(t.wanted, dir)
		}
	}
	t.metrics.Leases.Set(float64(t.leaseCount))
	t.metrics.LeaseSessions.Set(float64(len(t.sessions)))
}

// drop ends a registration; nil is allowed. The caller holds the mutex.
func (t *Table) drop(h *holder) {
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

// release takes back all leases of a session. The caller holds the mutex.
func (t *Table) release(h *holder) {
	for lease := range h.leases {
		t.unhold(h, lease)
	}
}

// add adds a registration without leases. The caller holds the mutex.
func (t *Table) add(h *holder) {
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

// holdersOf returns the slots of the sessions with a lease. The caller holds the mutex.
func (t *Table) holdersOf(lease moraine.InodeID) []uint32 {
	if slot, ok := t.one[lease]; ok {
		return []uint32{slot}
	}
	return t.many[lease]
}

// holds adds a lease; false if the session has too many. The caller holds the mutex.
func (t *Table) holds(h *holder, lease moraine.InodeID) bool {
	if _, ok := h.leases[lease]; ok {
		return true
	}
	if len(h.leases) >= maxLeases {
		return false
	}
	h.leases[lease] = struct{}{}
	t.leaseCount++
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

// unhold takes a lease back. The caller holds the mutex.
func (t *Table) unhold(h *holder, lease moraine.InodeID) {
	if _, ok := h.leases[lease]; !ok {
		return
	}
	delete(h.leases, lease)
	t.leaseCount--
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
