package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

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
	return &pool{dir: dir, limit: min(limit, slotRoom(&fs)), owned: map[string]int{}, changed: make(chan struct{})}, nil
}

// want is what a caller of take needs.
type want struct {
	uid uint32
	// owner names the rank, which gets the slot that it had before: it has that one mapped.
	owner string
	bytes int64
	// wait lets take wait for memory.
	wait bool
}

// take returns a slot of at least w.bytes bytes: a free one of the user, or a new one. If there is
// no room, it calls spare, which may return a slot that is needed least. If that frees nothing
// either, it waits for memory, unless nothing will be returned. Its content is undefined. The
// caller calls placed once spare knows who has the slot.
func (p *pool) take(ctx context.Context, w want, spare func() (freed, more bool)) (*slot, error) {
	n, err := p.slotSize(w.bytes)
	if err != nil {
		return nil, err
	}
	for {
		s, now, err := p.try(w, n)
		if s != nil || err != nil {
			return s, err
		}
		freed, more := spare()
		switch {
		case freed:
			continue
		case !more && !now.making && !ended(now.changed):
			return nil, p.noRoom(n)
		case !w.wait:
			return nil, &moraine.Error{Op: "agent.Begin", Kind: moraine.Busy,
				Err: errors.New("the slots of earlier saves are still being written to the cluster")}
		}
		select {
		case <-now.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// slotSize is the length of a slot for n bytes.
func (p *pool) slotSize(n int64) (int64, error) {
	if n > p.limit {
		return 0, p.noRoom(n)
	}
	if n = (n + hugePage - 1) / hugePage * hugePage; n > p.limit {
		return 0, p.noRoom(n)
	}
	return n, nil
}

// snapshot is the pool as a try found it: whether slots are being made, and what changes next.
type snapshot struct {
	making  bool
	changed chan struct{}
}

// try returns a slot if there is a free one, or room for one.
func (p *pool) try(w want, n int64) (*slot, snapshot, error) {
	for {
		p.mu.Lock()
		now := snapshot{p.making > 0, p.changed}
		s, usable := p.reuse(w, n)
		room := s == nil && p.used+n <= p.limit
		if room {
			p.used += n
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
	n, err := p.slotSize(w.bytes)
	for err == nil {
		p.mu.Lock()
		more := !p.closed && p.owned[w.owner] < count && p.used+n <= p.limit
		if more {
			p.used += n
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

func (p *pool) noRoom(n int64) error {
	return &moraine.Error{Op: "agent.Begin", Kind: moraine.NoSpace, Err: fmt.Errorf(
		"a part of %d bytes does not fit beside the last good one of each rank into the arenas' %d bytes: raise --arena-memory, which is at most the size of the tmpfs", n, p.limit)}
}

// reuse takes a free slot out: a usable one of the user that has n bytes, and not twice as many,
// if possible one that the owner had; else one that has to make room for a new one. It returns nil
// if there is none, or room without it. The caller holds the mutex.
func (p *pool) reuse(w want, n int64) (s *slot, usable bool) {
	best := -1
	for i, s := range p.free {
		if s.uid == w.uid && int64(len(s.mem)) >= n && int64(len(s.mem)) < 2*n && (best < 0 || s.fits(w.owner, p.free[best])) {
			best = i
		}
	}
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

// disown counts one slot less for the owner of s. The caller holds the mutex.
func (p *pool) disown(s *slot) {
	if p.owned[s.owner]--; p.owned[s.owner] == 0 {
		delete(p.owned, s.owner)
	}
}

// make makes a slot of n bytes that p.used and p.owned already count. Its pages are there when it
// returns.
func (p *pool) make(w want, n int64) (s *slot, err error) {
	defer func() {
		if err != nil {
			p.mu.Lock()
			p.used -= n
			p.disown(&slot{owner: w.owner})
			p.mu.Unlock()
			p.placed()
		}
	}()
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	path := filepath.Join(p.dir, slotPrefix+hex.EncodeToString(id[:]))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, n); err != nil {
		err = &moraine.Error{Op: "agent.Begin", Kind: moraine.NoSpace, Err: fmt.Errorf(
			"the tmpfs of %s has no %d bytes more (%w): mount it with a size of at least --arena-memory", p.dir, n, err)}
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	if s, err = mapSlot(f, w.uid, n); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	s.owner = w.owner
	return s, nil
}

// put returns a slot that no trainer writes to any more.
func (p *pool) put(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, s)
	p.signal()
}

// discard gives the memory of a slot back to the node. A trainer that still has it mapped writes
// to memory that nobody reads.
func (p *pool) discard(s *slot) {
	discardAll([]*slot{s})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= int64(len(s.mem))
	p.disown(s)
	p.signal()
}

// signal wakes those that wait for memory. The caller holds the mutex.
func (p *pool) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// inUse returns how many bytes slots have, free ones included.
func (p *pool) inUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// recover opens the slot that an agent before this one left. Its bytes count even beyond the
// limit: they are there. A reader may still have it mapped from that agent.
func (p *pool) recover(name string, uid uint32, owner string) (*slot, error) {
	f, err := os.OpenFile(filepath.Join(p.dir, name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() == 0 {
		err = &moraine.Error{Op: "agent", Ref: name, Kind: moraine.Corrupt, Err: errors.New("the slot is empty")}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s, err := mapSlot(f, uid, st.Size())
	if err != nil {
		return nil, err
	}
	s.shared, s.owner = true, owner
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used += st.Size()
	p.owned[owner]++
	return s, nil
}

// leftovers returns the names of all that belongs to slots in the pool's directory.
func (p *pool) leftovers() (files []string, err error) {
	entries, err := os.ReadDir(p.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), slotPrefix) {
			files = append(files, e.Name())
		}
	}
	return files, err
}

// close unmaps the free slots and removes their files. Slots in use stay for the next agent.
func (p *pool) close() {
	p.mu.Lock()
	free := p.free
	p.free, p.closed = nil, true
	p.mu.Unlock()
	discardAll(free)
}
