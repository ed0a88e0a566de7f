package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
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

// slot is a file of the node's tmpfs that one rank's part is copied into. The trainer and the
// agent map it shared. Its length never changes. A slot belongs to one user.
type slot struct {
	name string
	uid  uint32
	file *os.File
	mem  []byte
	// shared says that a reader may have it mapped. Agent.mu guards it.
	shared bool
}

// pool is the memory of the node for slots, within one limit. All methods may be called
// concurrently.
type pool struct {
	dir   string
	limit int64

	mu   sync.Mutex
	used int64
	free []*slot
	// making counts the slots that were given out, and that no part is known to have yet.
	making int
	// changed is closed and replaced whenever memory is returned.
	changed chan struct{}
}

// newPool uses dir, which must be in memory: a save must not wait for a disk.
func newPool(dir string, limit int64) (*pool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.HUGETLBFS_MAGIC {
		return nil, fmt.Errorf("%s is not in memory: name a directory of a tmpfs, such as /dev/shm/moraine", dir)
	}
	if err := own(dir); err != nil {
		return nil, err
	}
	return &pool{dir: dir, limit: min(limit, slotRoom(&fs)), changed: make(chan struct{})}, nil
}

// slotRoom returns how many bytes of slots a tmpfs has room for, beside their manifests. Containers
// often have one of 64 MiB. A tmpfs without a size has no bound.
func slotRoom(fs *unix.Statfs_t) int64 {
	if fs.Blocks == 0 {
		return math.MaxInt64
	}
	size := int64(fs.Blocks) * fs.Bsize
	return size - size/32
}

// own fails unless only the agent's user can write to dir. Everybody may make directories in
// /dev/shm, and whoever owns this one could plant manifests, which the agent writes to the cluster.
func own(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() && st.Mode&0o022 == 0 {
		return nil
	}
	return &moraine.Error{Op: "agent", Ref: dir, Kind: moraine.PermissionDenied, Err: fmt.Errorf(
		"other users can write to the arenas' directory: remove it, or make it a directory of user %d with mode 0700", os.Geteuid())}
}

// take returns a slot of at least n bytes for a user: a free one of the user, or a new one.
// If there is no room, it calls spare, which may return a slot that is needed least. If that
// frees nothing either, it waits for memory, unless wait is false or nothing will be returned.
// Its content is undefined. The caller calls placed once spare knows who has the slot.
func (p *pool) take(ctx context.Context, uid uint32, n int64, wait bool, spare func() (freed, more bool)) (*slot, error) {
	if n > p.limit {
		return nil, p.noRoom(n)
	}
	n = (n + hugePage - 1) / hugePage * hugePage
	if n > p.limit {
		return nil, p.noRoom(n)
	}
	for {
		p.mu.Lock()
		changed, making := p.changed, p.making > 0
		s, usable := p.reuse(uid, n)
		room := s == nil && p.used+n <= p.limit
		if room {
			p.used += n
		}
		if room || usable {
			p.making++
		}
		p.mu.Unlock()
		switch {
		case room:
			return p.make(uid, n)
		case usable:
			return s, nil
		case s != nil:
			p.discard(s)
			continue
		}
		freed, more := spare()
		switch {
		case freed:
			continue
		case !more && !making && !ended(changed):
			return nil, p.noRoom(n)
		case !wait:
			return nil, &moraine.Error{Op: "agent.Begin", Kind: moraine.Busy,
				Err: errors.New("the slots of earlier saves are still being written to the cluster")}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
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

// reuse takes a free slot out: a usable one of the user that has n bytes, and not twice as many;
// else one that has to make room for a new one. It returns nil if there is none, or room without
// it. The caller holds the mutex.
func (p *pool) reuse(uid uint32, n int64) (s *slot, usable bool) {
	best := -1
	for i, s := range p.free {
		if s.uid == uid && int64(len(s.mem)) >= n && int64(len(s.mem)) < 2*n &&
			(best < 0 || len(s.mem) < len(p.free[best].mem)) {
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
	return s, usable && s.whole() == nil // a trainer that had it may have cut it
}

// make makes a slot of n bytes that p.used already counts. Its pages are there when it returns.
func (p *pool) make(uid uint32, n int64) (s *slot, err error) {
	defer func() {
		if err != nil {
			p.mu.Lock()
			p.used -= n
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
	if s, err = p.mapSlot(f, uid, n); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return s, err
}

// mapSlot maps a slot's file, which it closes if that fails.
func (p *pool) mapSlot(f *os.File, uid uint32, n int64) (*slot, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(&moraine.Error{Op: "map slot", Kind: moraine.NoSpace, Err: err}, f.Close())
	}
	// Huge pages and page tables that are there already are faster; without them it works too.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return &slot{name: filepath.Base(f.Name()), uid: uid, file: f, mem: mem}, nil
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
	p.signal()
}

func discardAll(slots []*slot) {
	for _, s := range slots {
		// Unlinked and unmapped in any case: an error here leaves memory that a restart removes.
		_ = os.Remove(s.file.Name())
		_ = unix.Munmap(s.mem)
		_ = s.file.Close()
	}
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
func (p *pool) recover(name string, uid uint32) (*slot, error) {
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
	s, err := p.mapSlot(f, uid, st.Size())
	if err != nil {
		return nil, err
	}
	s.shared = true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used += st.Size()
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

// whole fails if somebody has cut the slot's file short: reading its memory would end the process.
func (s *slot) whole() error {
	st, err := s.file.Stat()
	if err == nil && st.Size() != int64(len(s.mem)) {
		err = &moraine.Error{Op: "agent.Seal", Ref: s.name, Kind: moraine.Corrupt,
			Err: fmt.Errorf("the trainer has changed the length of the slot from %d to %d bytes", len(s.mem), st.Size())}
	}
	return err
}

// close unmaps the free slots and removes their files. Slots in use stay for the next agent.
func (p *pool) close() {
	p.mu.Lock()
	free := p.free
	p.free = nil
	p.mu.Unlock()
	discardAll(free)
}
