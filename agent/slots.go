package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

// How a pool makes, keeps and gives back its slots.

// make makes a slot of n bytes that p.used and p.owned already count. Its pages are there when it
// returns.
func (p *pool) make(w want, n int64) (s *slot, err error) {
	defer func() {
		if err != nil {
			p.mu.Lock()
			p.count(w.uid, -n)
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
		err = &moraine.Error{Op: w.op, Kind: moraine.NoSpace, Err: fmt.Errorf(
			"the tmpfs of %s has no %d bytes more (%w): mount it with a size of at least --arena-memory, or end processes that keep what they have read", p.dir, n, err)}
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
	p.count(s.uid, -int64(len(s.mem)))
	if s.lent {
		p.lent -= int64(len(s.mem))
	}
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
	p.count(uid, st.Size())
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

// close gives back the free slots: their pages too, which the trainers that had them keep mapped and the
// next agent needs. Slots in use stay for that one.
func (p *pool) close() {
	p.mu.Lock()
	free := p.free
	p.free, p.closed = nil, true
	p.mu.Unlock()
	for _, s := range free {
		s.empty()
	}
	discardAll(free)
}
