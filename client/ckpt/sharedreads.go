package ckpt

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
)

// SharedReads lets checkpoints that several ranks of a node have open read each range of a file once:
// whoever comes first reads it, and the others copy it. A range stays until its memory is needed. All
// methods may be called concurrently.
type SharedReads struct {
	limit int64
	// prefer is the replica that all of them read.
	prefer uint32

	mu     sync.Mutex
	used   int64
	ranges map[rangeKey]*sharedRange
	idle   []*sharedRange // read, and nobody copies them; the latest used last
	// changed is closed and replaced whenever memory becomes idle or free.
	changed chan struct{}
}

// rangeKey names a range of a file of a committed step, whose directory's inode is never used again.
type rangeKey struct {
	dir  moraine.InodeID
	file int
	off  int64
	n    int
}

type sharedRange struct {
	key   rangeKey
	p     []byte
	err   error         // of the read
	ready chan struct{} // closed when it has ended
	users int
}

// NewSharedReads returns reads that are shared in at most the given bytes of memory.
func NewSharedReads(bytes int64) *SharedReads {
	return &SharedReads{limit: bytes, prefer: rand.Uint32(), ranges: map[rangeKey]*sharedRange{}, changed: make(chan struct{})}
}

// ShareReads lets k read ranges from the cluster together with others that share s. It is for agents:
// ranks of other processes cannot. Do not call it during a read.
func (k *Checkpoint) ShareReads(s *SharedReads) { k.files.shared, k.prefer = s, s.prefer }

// read fills dst with a range, through fetch unless another reader has it or fetches it now. It waits
// for memory that others use. own reports whether it called fetch.
func (s *SharedReads) read(ctx context.Context, key rangeKey, dst []byte, fetch func([]byte) error) (own bool, err error) {
	for {
		r, mine, changed := s.get(key)
		if r == nil {
			if err := wait(ctx, changed); err != nil {
				return false, err
			}
			continue
		}
		if mine {
			r.err = fetch(r.p)
			close(r.ready)
		}
		err := wait(ctx, r.ready)
		if err == nil && r.err == nil {
			copy(dst, r.p)
		}
		s.put(r)
		if mine || err != nil || r.err == nil {
			if err == nil {
				err = r.err
			}
			return mine, err
		}
		// The one that read it has failed, or its trainer has ended: this one reads itself.
	}
}

// get returns the range, which the caller puts back. mine says that the caller must read it. Without
// memory for it, it returns nil, and what changes next.
func (s *SharedReads) get(key rangeKey) (r *sharedRange, mine bool, changed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ranges[key]; r != nil {
		if r.users == 0 {
			s.idle = slices.DeleteFunc(s.idle, func(o *sharedRange) bool { return o == r })
		}
		r.users++
		return r, false, nil
	}
	for s.used+int64(key.n) > s.limit && len(s.idle) > 0 {
		s.forget(s.idle[0])
		s.idle = s.idle[1:]
	}
	if s.used+int64(key.n) > s.limit {
		return nil, false, s.changed
	}
	r = &sharedRange{key: key, p: make([]byte, key.n), ready: make(chan struct{}), users: 1}
	s.ranges[key] = r
	s.used += int64(key.n)
	return r, true, nil
}

// put ends one use of a range. One that failed is forgotten at once, so that the next reader reads
// again.
func (s *SharedReads) put(r *sharedRange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.users--
	failed := ended(r.ready) && r.err != nil
	if failed && s.ranges[r.key] == r {
		delete(s.ranges, r.key) // its users still have its memory
	}
	if r.users > 0 {
		return
	}
	if failed {
		s.used -= int64(len(r.p))
	} else {
		s.idle = append(s.idle, r)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// forget drops an idle range. The caller holds the mutex.
func (s *SharedReads) forget(r *sharedRange) {
	delete(s.ranges, r.key)
	s.used -= int64(len(r.p))
}

// Forget drops the ranges that nobody reads, so that a node that trains keeps no memory for them.
func (s *SharedReads) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.idle {
		s.forget(r)
	}
	s.idle = nil
	close(s.changed)
	s.changed = make(chan struct{})
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
