// Package readonce lets several readers of one process read each range of a file once. It opens no
// files: a key names a range.
//
// One path through it: the agent of a node makes Reads -> the checkpoint of a rank calls Read for each
// range -> the first one fetches it, and the others copy what it has read.
package readonce

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
)

// Reads are ranges in memory: whoever comes first reads one, and the others copy it. A range stays
// until its memory is needed. All methods may be called concurrently.
type Reads struct {
	// Limit bounds the memory, in bytes. Nothing changes it.
	Limit int64
	// Prefer is a number for readers that can choose between replicas: all should choose the same.
	Prefer uint32

	mu     sync.Mutex
	used   int64
	ranges map[Key]*entry
	idle   []*entry // read, and nobody copies them; the latest used last
	// changed is closed and replaced whenever memory becomes idle or free.
	changed chan struct{}
}

// Key names a range: Bytes bytes from Offset on of a file of a committed step. The inode of the step's
// directory is never used again.
type Key struct {
	Dir    moraine.InodeID
	File   int
	Offset int64
	Bytes  int
}

type entry struct {
	key   Key
	p     []byte
	err   error         // of the read
	ready chan struct{} // closed when it has ended
	users int
}

// New returns Reads in at most the given bytes of memory.
func New(bytes int64) *Reads {
	return &Reads{Limit: bytes, Prefer: rand.Uint32(), ranges: map[Key]*entry{}, changed: make(chan struct{})}
}

// Read fills dst with a range, through fetch unless another reader has it or fetches it now. It waits
// for memory that others use. own reports whether it called fetch.
func (s *Reads) Read(ctx context.Context, key Key, dst []byte, fetch func([]byte) error) (own bool, err error) {
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
func (s *Reads) get(key Key) (r *entry, mine bool, changed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ranges[key]; r != nil {
		if r.users == 0 {
			s.idle = slices.DeleteFunc(s.idle, func(o *entry) bool { return o == r })
		}
		r.users++
		return r, false, nil
	}
	for s.used+int64(key.Bytes) > s.Limit && len(s.idle) > 0 {
		s.forget(s.idle[0])
		s.idle = s.idle[1:]
	}
	if s.used+int64(key.Bytes) > s.Limit {
		return nil, false, s.changed
	}
	r = &entry{key: key, p: make([]byte, key.Bytes), ready: make(chan struct{}), users: 1}
	s.ranges[key] = r
	s.used += int64(key.Bytes)
	return r, true, nil
}

// put ends one use of a range. One that failed is forgotten at once, so that the next reader reads
// again.
func (s *Reads) put(r *entry) {
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
func (s *Reads) forget(r *entry) {
	delete(s.ranges, r.key)
	s.used -= int64(len(r.p))
}

// Forget drops the ranges that nobody reads, so that a node that trains keeps no memory for them.
func (s *Reads) Forget() {
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

func wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
