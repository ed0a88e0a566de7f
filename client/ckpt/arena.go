package ckpt

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
	"golang.org/x/sys/unix"
)

// segmentSize is the unit of staging memory, in bytes.
const segmentSize = 32 << 20

// arena is the staging memory of one process: segments that are mapped and faulted in once and
// then reused. Its size is bounded. A save that needs more waits until an earlier one has been
// written. All methods may be called concurrently.
type arena struct {
	limit   int64 // bytes, a multiple of segmentSize
	metrics *Metrics
	wait    limit.Resource

	mu     sync.Mutex
	free   [][]byte
	mapped int64
	closed bool
	// changed is closed and replaced whenever a segment is returned.
	changed chan struct{}
}

// segmentPatience bounds how long a save waits for the memory of an earlier one. That memory is
// free once a whole part is written, or has failed.
const segmentPatience = 30 * time.Minute

func newArena(bytes int64, m *Metrics, log *slog.Logger) *arena {
	return &arena{limit: max(bytes/segmentSize, 1) * segmentSize, metrics: m,
		wait: limit.Resource{Name: "staging memory", Patience: segmentPatience, Advice: "raise StagingBytes, or save less often",
			Reports: limit.NewReporter(log, m.WaitsExceeded)},
		changed: make(chan struct{})}
}

// prefault maps segments until the arena has n bytes, or its limit.
func (a *arena) prefault(n int64) error {
	for {
		a.mu.Lock()
		enough := a.mapped >= min(n, a.limit)
		if !enough {
			a.mapped += segmentSize
		}
		a.mu.Unlock()
		if enough {
			return nil
		}
		s, err := a.mapSegment()
		if err != nil {
			return err
		}
		a.put(s)
	}
}

// get returns a segment, whose content is undefined. If all are in use and the limit is
// reached, it waits, at most segmentPatience.
func (a *arena) get(ctx context.Context) ([]byte, error) {
	for {
		a.mu.Lock()
		if n := len(a.free); n > 0 {
			s := a.free[n-1]
			a.free = a.free[:n-1]
			a.mu.Unlock()
			return s, nil
		}
		if a.mapped < a.limit {
			a.mapped += segmentSize
			a.mu.Unlock()
			return a.mapSegment()
		}
		changed := a.changed
		a.mu.Unlock()
		a.metrics.StagingWaits.Inc()
		err := a.wait.Wait(ctx, func(ctx context.Context) error {
			select {
			case <-changed:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if err != nil {
			return nil, err
		}
	}
}

// hasRoom reports whether n bytes fit into what no save uses.
func (a *arena) hasRoom(n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(n, 1) <= int64(len(a.free))*segmentSize+a.limit-a.mapped
}

// mapSegment maps one segment that a.mapped already counts.
func (a *arena) mapSegment() ([]byte, error) {
	s, err := unix.Mmap(-1, 0, segmentSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		a.mu.Lock()
		a.mapped -= segmentSize
		a.signal() // another save may map one, or gets the same error
		a.mu.Unlock()
		return nil, &moraine.Error{Op: "map staging memory", Kind: moraine.NoSpace, Err: err}
	}
	a.metrics.StagingMapped.Add(segmentSize)
	// Huge pages are optional. Faulting in is not: otherwise the trainer would stall for it at
	// its first save. Kernels before 5.14 lack the advice.
	_ = unix.Madvise(s, unix.MADV_HUGEPAGE)
	if unix.Madvise(s, unix.MADV_POPULATE_WRITE) != nil {
		for i := 0; i < len(s); i += moraine.BlockSize {
			s[i] = 0
		}
	}
	return s, nil
}

// put returns segments.
func (a *arena) put(segments ...[]byte) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		a.unmap(segments)
		return
	}
	a.free = append(a.free, segments...)
	a.signal()
	a.mu.Unlock()
}

// signal wakes the saves that wait for a segment. The caller holds the mutex.
func (a *arena) signal() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// close unmaps the free segments now, and the others when they are returned.
func (a *arena) close() {
	a.mu.Lock()
	free := a.free
	a.free, a.closed = nil, true
	a.mu.Unlock()
	a.unmap(free)
}

func (a *arena) unmap(segments [][]byte) {
	for _, s := range segments {
		if err := unix.Munmap(s); err != nil {
			panic(fmt.Sprintf("ckpt: unmap a staging segment of %d bytes: %v", len(s), err))
		}
		a.metrics.StagingMapped.Sub(segmentSize)
	}
}
