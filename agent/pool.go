package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

const (
	slotPrefix = "slot-"
	// hugePage is the unit of a slot's length, in bytes: its memory can then be huge pages.
	hugePage = 2 << 20
)

// pool is the memory of the node for slots, within one limit. All methods may be called
// concurrently.
type pool struct {
	dir   string
	limit int64

	mu   sync.Mutex
	used int64
	free []*slot
	// owned counts the slots of each owner, free ones included.
	owned  map[string]int
	closed bool
	// users has the bytes of each user's slots, free ones included; waiting has what the callers of take
	// wait for.
	users   map[uint32]int64
	waiting map[uint32][]int64
	// lent counts the bytes of the slots of readers.
	lent int64
	// making counts the slots that were given out, and that no part is known to have yet.
	making int
	// changed is closed and replaced whenever memory is returned.
	changed chan struct{}
}

// newPool uses dir, which arenaDir has prepared.
func newPool(dir string, limit int64) (*pool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return &pool{dir: dir, limit: min(limit, slotRoom(&fs)), owned: map[string]int{}, users: map[uint32]int64{}, waiting: map[uint32][]int64{}, changed: make(chan struct{})}, nil
}

// want is what a caller of take needs.
type want struct {
	// op names the request in errors: agent.Begin of a save, or another of a reader or writer of files.
	op  string
	uid uint32
	// owner names the rank, which gets the slot that it had before: it has that one mapped.
	owner string
	bytes int64
	// wait lets take wait for memory.
	wait bool
	// patience bounds the wait for slots of readers.
	patience time.Duration
	// lent is how many bytes of slots the caller itself has for reads: it does not wait for those.
	lent int64
}

// take returns a slot of at least w.bytes bytes: a free one of the user, or a new one. If there is
// no room, it calls spare, which may return a slot that is needed least. If that frees nothing
// either, it waits for memory, unless nothing will be returned. For memory that only readers have it
// waits w.patience. The content of the slot is undefined. The caller calls placed once spare knows who
// has the slot, or lend.
func (p *pool) take(ctx context.Context, w want, spare func() (freed, more bool)) (*slot, error) {
	n, err := p.slotSize(w)
	if err != nil {
		return nil, err
	}
	var patience <-chan time.Time
	pages := pageWait{p: p, patience: w.patience, wait: w.wait}
	for waits := false; ; {
		s, now, err := p.try(w, n)
		if errors.Is(err, unix.ENOSPC) {
			if err = pages.end(ctx, spare, err); err == nil {
				continue
			}
		}
		if s != nil || err != nil {
			return s, err
		}
		if w.wait && !waits {
			waits = true
			defer p.wait(w.uid, n)()
		}
		freed, more := spare()
		readers := now.readersHave(w)
		switch {
		case freed:
			continue
		case !more && !readers && !now.making && !now.yields && !ended(now.changed):
			return nil, p.noRoom(w, n)
		case !w.wait:
			return nil, errBusy(w)
		case more: // saves that are being written give memory back
			patience = nil
		case readers && patience == nil:
			patience = time.After(w.patience)
		}
		select {
		case <-now.changed:
		case <-patience:
			return nil, p.lentRoom(w, n)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// slotSize is the length of a slot for what w wants.
func (p *pool) slotSize(w want) (int64, error) {
	n := w.bytes
	if n > p.limit {
		return 0, p.noRoom(w, n)
	}
	if n = (n + hugePage - 1) / hugePage * hugePage; n > p.limit {
		return 0, p.noRoom(w, n)
	}
	return n, nil
}

// snapshot is the pool as a try found it: whether slots are being made, whether another user comes
// first, how many bytes are in slots and with readers, beyond what may be, and what changes next.
type snapshot struct {
	making  bool
	yields  bool
	over    int64 // bytes of all slots beyond the limit, if n more were there
	lent    int64
	changed chan struct{}
}

// readersHave reports whether there is room once all other readers have given their slots back.
func (now *snapshot) readersHave(w want) bool {
	others := now.lent - w.lent
	return others > 0 && now.over <= others
}

// try returns a slot if there is a free one, or room for one.
func (p *pool) try(w want, n int64) (*slot, snapshot, error) {
	for {
		p.mu.Lock()
		now := snapshot{p.making > 0, w.wait && p.yields(w.uid, p.growth(w, n)), p.used + n - p.limit, p.lent, p.changed}
		if now.yields {
			p.mu.Unlock()
			return nil, now, nil
		}
		s, usable := p.reuse(w, n)
		room := s == nil && p.used+n <= p.limit
		if room {
			p.count(w.uid, n)
		}
		if room || usable {
			p.making++
			p.owned[w.owner]++
		}
		p.mu.Unlock()
		switch {
		case room:
			s, err := p.make(w, n)
			return s, now, err
		case usable || s == nil:
			return s, now, nil
		}
		s.empty() // its last trainer may have it mapped, but not in use
		p.discard(s)
	}
}

// prefault makes slots for w until its owner has count, as long as there is room: a save that begins
// then finds memory whose pages are there. It takes no slot from anybody.
func (p *pool) prefault(w want, count int) error {
	n, err := p.slotSize(w)
	for err == nil {
		p.mu.Lock()
		more := !p.closed && p.owned[w.owner] < count && p.used+n <= p.limit && !p.yields(w.uid, n)
		if more {
			p.count(w.uid, n)
			p.making++
			p.owned[w.owner]++
		}
		p.mu.Unlock()
		if !more {
			return nil
		}
		var s *slot
		if s, err = p.make(w, n); err == nil {
			p.put(s)
			p.placed()
		}
	}
	return err
}

// placed ends what take began.
func (p *pool) placed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making--
	p.signal()
}

// ended reports whether a channel is closed.
func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// noRoom is the error of a caller for whom nobody will give memory back.
func (p *pool) noRoom(w want, n int64) error {
	what := fmt.Sprintf("%d bytes of a read do not fit beside the parts of checkpoints into the arenas' %d bytes: read fewer bytes at once (read_into of Python reads in batches of batch_bytes), or", n, p.limit)
	switch {
	case w.saves():
		what = fmt.Sprintf("a part of %d bytes does not fit beside the last good one of each rank into the arenas' %d bytes:", n, p.limit)
	case w.writesFile():
		what = fmt.Sprintf("a buffer of %d bytes for a file does not fit beside the parts of checkpoints into the arenas' %d bytes: append fewer bytes at once, or", n, p.limit)
	}
	return &moraine.Error{Op: w.op, Kind: moraine.NoSpace, Err: fmt.Errorf("%s raise --arena-memory, which is at most the size of the tmpfs", what)}
}

// saves reports whether the slot is for a part.
func (w want) saves() bool { return w.op == "agent.Begin" || w.op == "agent.Open" }

// writesFile reports whether the slot is for a file that is written.
func (w want) writesFile() bool { return w.op == "agent.Create" }

// reuse takes a free slot out: a usable one of the user that has n bytes, and not twice as many,
// if possible one that the owner had; else one that has to make room for a new one. It returns nil
// if there is none, or room without it. The caller holds the mutex.
func (p *pool) reuse(w want, n int64) (s *slot, usable bool) {
	best := p.usable(w, n)
	usable = best >= 0
	if !usable && len(p.free) > 0 && p.used+n > p.limit {
		best = 0
	}
	if best < 0 {
		return nil, false
	}
	s = p.free[best]
	p.free = slices.Delete(p.free, best, best+1)
	if usable = usable && s.whole() == nil; usable { // a trainer that had it may have cut it
		p.disown(s)
		s.owner = w.owner
	}
	return s, usable
}

// usable returns the free slot that suits best; -1: none. A rank's slot is for ranks: that one keeps it
// mapped, so its memory would not be free once a reader has given it back. The caller holds the mutex.
func (p *pool) usable(w want, n int64) int {
	best := -1
	for i, s := range p.free {
		if s.uid == w.uid && (s.owner == "" || w.owner != "") && int64(len(s.mem)) >= n && int64(len(s.mem)) < 2*n && (best < 0 || s.fits(w.owner, p.free[best])) {
			best = i
		}
	}
	return best
}

// growth is how many bytes more the user has with a slot of n bytes. The caller holds the mutex.
func (p *pool) growth(w want, n int64) int64 {
	if p.usable(w, n) >= 0 {
		return 0
	}
	return n
}

// disown counts one slot less for the owner of s. The caller holds the mutex.
func (p *pool) disown(s *slot) {
	if p.owned[s.owner]--; p.owned[s.owner] == 0 {
		delete(p.owned, s.owner)
	}
}
