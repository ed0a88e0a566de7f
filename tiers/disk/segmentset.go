package disk

import (
	"slices"
	"sync"
	"sync/atomic"
)

// segmentSet is the segments of a device, and the counters of the space of their
// records.
type segmentSet struct {
	deps    *Deps
	failure *failure

	liveBytes, deadBytes, chunks atomic.Int64

	mu       sync.RWMutex // guards byNumber
	byNumber map[uint64]*segment
}

// get returns a segment by number, or nil if it was removed.
func (ss *segmentSet) get(number uint64) *segment {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	return ss.byNumber[number]
}

// sorted returns the segments in order, which is the order of their
// records.
func (ss *segmentSet) sorted() []*segment {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	all := make([]*segment, 0, len(ss.byNumber))
	for _, s := range ss.byNumber {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *segment) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return all
}

// add adds a segment.
func (ss *segmentSet) add(s *segment) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.byNumber[s.number] = s
}

// remove removes a segment, and closes its file once nothing uses it.
func (ss *segmentSet) remove(s *segment) {
	ss.mu.Lock()
	delete(ss.byNumber, s.number)
	ss.mu.Unlock()
	s.retire()
}

// close closes the files of all segments.
func (ss *segmentSet) close() {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	for _, s := range ss.byNumber {
		s.retire()
	}
}

// addLive counts a record that the index names from now on.
func (ss *segmentSet) addLive(s *segment, at extent) {
	s.live.Add(at.size)
	ss.liveBytes.Add(at.size)
	ss.chunks.Add(1)
}

// dropLive counts a record that the index no longer names. markDead comes first. A
// segment thus never has neither live nor dead bytes while a scan could still find
// one of its records.
func (ss *segmentSet) dropLive(at extent) {
	if s := ss.get(at.segment); s != nil {
		s.live.Add(-at.size)
	}
	ss.liveBytes.Add(-at.size)
	ss.chunks.Add(-1)
}

// sync makes durable all bytes written to s before the call.
func (ss *segmentSet) sync(s *segment) error {
	return s.syncs.wait(func() error {
		if err := ss.failure.err(); err != nil {
			return err // never retry a sync after a write or sync failed
		}
		begin := ss.deps.Clock.Now()
		err := s.file.Sync()
		ss.deps.Metrics.Syncs.Inc()
		ss.deps.Metrics.SyncSeconds.Observe(ss.deps.Clock.Now().Sub(begin).Seconds())
		if err != nil {
			return ss.failure.fail("disk.sync", err)
		}
		return nil
	})
}
