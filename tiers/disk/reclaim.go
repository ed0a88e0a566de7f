package disk

import (
	"errors"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/vfs"
)

// reclaimer reclaims space in the background.
type reclaimer struct {
	cfg      *Config
	deps     *Deps
	heads    *bufpool.Pool
	failure  *failure
	segments *segmentSet
	index    *index
	app      *appender
	ballast  *ballast

	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed when the goroutine has ended

	// flushed is closed when the flush of the index covers the marks of the
	// segments in settling. Only once uses them.
	flushed  <-chan struct{}
	settling []*segment

	mu    sync.Mutex // guards the fields below
	queue []dead     // records whose space is to be reclaimed, in order of death
}

// dead is a dead record of a chunk.
type dead struct {
	id moraine.ChunkID
	at extent
}

// markDead queues a dead record for reclaim. The record that killed it is durable.
func (rc *reclaimer) markDead(id moraine.ChunkID, at extent) {
	s := rc.segments.get(at.segment)
	if s == nil {
		return // the whole segment was removed
	}
	s.dead.Add(at.size)
	rc.segments.deadBytes.Add(at.size)
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.queue = append(rc.queue, dead{id: id, at: at})
}

// run is the goroutine of an open device. Close ends it after all users of
// the index are done.
func (rc *reclaimer) run() {
	defer close(rc.stopped)
	ticker := rc.deps.Clock.NewTicker(rc.cfg.ReclaimInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := rc.once(); err != nil {
				continue // the device has failed: the next turn ends the loop
			}
			_ = rc.ballast.keep() // retried at the next turn
		case <-rc.stop:
			rc.last()
			rc.index.close()
			return
		case <-rc.failure.failed:
			return // the device reclaims nothing more
		}
	}
}

// last seals the active segment, reclaims what it can, and flushes the
// index, so that the next Open has nothing to scan.
func (rc *reclaimer) last() {
	rc.app.mu.Lock()
	if s := rc.app.active; s != nil {
		s.sealed = true
		rc.app.active = nil
	}
	rc.app.mu.Unlock()
	if rc.failure.err() != nil || rc.once() != nil {
		return
	}
	rc.index.flush()
}

// once reclaims the space of all dead records, marks the segments that
// become complete by that, and removes those without live records. Only one call
// runs at a time.
//
// The order carries the crash argument. once chooses the segments to mark
// before it empties the queue. At that time all their operations are in the index,
// and what they killed is in the queue or already reclaimed. It marks them only
// after the syncs of the second step, and in order. The unmarked ones are therefore
// always the last of the log.
func (rc *reclaimer) once() error {
	if err := rc.failure.err(); err != nil {
		return err
	}
	ready := rc.finishedSegments()
	rc.mu.Lock()
	records := rc.queue
	rc.queue = nil
	rc.mu.Unlock()
	if err := rc.giveBack(records); err != nil {
		return err
	}
	if err := rc.markComplete(ready); err != nil {
		return err
	}
	rc.settle()
	return rc.removeDead()
}

// finishedSegments returns the sealed segments without running operations, up to
// the first that has some.
func (rc *reclaimer) finishedSegments() []*segment {
	all := rc.segments.sorted()
	rc.app.mu.Lock()
	defer rc.app.mu.Unlock()
	var ready []*segment
	for _, s := range all {
		if !s.sealed || s.ops > 0 {
			break
		}
		if !s.complete {
			ready = append(ready, s)
		}
	}
	return ready
}

// giveBack punches dead records out of their segments, durably. A dead record may
// have killed an older one of the same chunk, and only it says where the older one
// lies. So giveBack removes it only after the older one is durably gone. The dead
// records of one chunk go one after the other, in rounds; each round covers all
// chunks together.
func (rc *reclaimer) giveBack(records []dead) error {
	var rounds [][]extent
	depth := map[moraine.ChunkID]int{}
	for _, b := range records {
		n := depth[b.id]
		depth[b.id]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], b.at)
	}
	for _, round := range rounds {
		if err := rc.punchAll(round); err != nil {
			return err
		}
	}
	return nil
}

// punchAll punches records, in any order, and makes the result durable.
func (rc *reclaimer) punchAll(records []extent) error {
	bySegment := map[*segment][]extent{}
	for _, at := range records {
		if s := rc.segments.get(at.segment); s != nil {
			bySegment[s] = append(bySegment[s], at)
		}
	}
	for s, of := range bySegment {
		f, ok, err := s.acquire(rc.deps.FS)
		if err != nil {
			return rc.failure.fail("disk.reclaim", err)
		}
		if !ok {
			continue
		}
		err = rc.punch(s, f, of)
		s.release()
		if err != nil {
			return err
		}
	}
	return nil
}

func (rc *reclaimer) punch(s *segment, f vfs.File, records []extent) error {
	total := int64(0)
	for _, at := range records {
		if err := rc.punchOne(f, at); err != nil {
			return rc.failure.fail("disk.reclaim", err)
		}
		total += at.size
	}
	if err := rc.segments.sync(s); err != nil {
		return err
	}
	s.dead.Add(-total)
	rc.segments.deadBytes.Add(-total)
	rc.deps.Metrics.Reclaimed.Add(float64(total))
	return nil
}

// punchOne makes a dead record unfindable and returns its space where the file
// system supports it. Otherwise it only erases the head.
func (rc *reclaimer) punchOne(f vfs.File, at extent) error {
	err := f.PunchHole(at.off, at.size)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	zero, err := scanBuffer(rc.heads, rc.cfg.Dir)
	if err != nil {
		return err
	}
	defer zero.Release()
	p := zero.Bytes()[:block]
	clear(p)
	_, err = f.WriteAt(p, at.off)
	return err
}

// markComplete marks segments and cuts off their unused space. It starts a flush of
// the index in the background, so that a crash leaves little to scan.
func (rc *reclaimer) markComplete(ready []*segment) error {
	if len(ready) == 0 {
		return nil
	}
	for _, s := range ready {
		if err := rc.trim(s); err != nil {
			return err
		}
		if err := rc.index.setMark(s); err != nil {
			return rc.index.fail("disk.reclaim", err)
		}
		s.complete = true
	}
	last := ready[len(ready)-1]
	if err := rc.index.setNext(last.lastSeq+1, last.number+1); err != nil {
		return rc.index.fail("disk.reclaim", err)
	}
	flushed, err := rc.index.db.AsyncFlush()
	if err != nil {
		return rc.index.fail("disk.reclaim", err)
	}
	// This flush supersedes one that still runs: it comes after it.
	rc.flushed, rc.settling = flushed, append(rc.settling, ready...)
	return nil
}

// settle records the segments whose marks have become durable.
func (rc *reclaimer) settle() {
	if rc.flushed == nil {
		return
	}
	select {
	case <-rc.flushed:
	default:
		return
	}
	for _, s := range rc.settling {
		s.settled = true
	}
	rc.flushed, rc.settling = nil, nil
}

// trim cuts off the part of a sealed segment that holds no record. This need not be
// durable.
func (rc *reclaimer) trim(s *segment) error {
	if s.end >= s.size {
		return nil
	}
	f, ok, err := s.acquire(rc.deps.FS)
	if err != nil || !ok {
		return err
	}
	defer s.release()
	if err := f.Truncate(s.end); err != nil {
		return rc.failure.fail("disk.trim", err)
	}
	s.size = s.end
	return nil
}

// removeDead removes the settled segments without live records. The space of
// everything that they killed is reclaimed, and the index has no entry of it, so
// nothing needs their tombstones. If a crash loses a removal, the segment returns.
// It then holds only tombstones that have nothing left to do.
func (rc *reclaimer) removeDead() error {
	for _, s := range rc.segments.sorted() {
		if !s.settled || s.live.Load() != 0 || s.dead.Load() != 0 {
			continue
		}
		if err := rc.index.removeMark(s.number); err != nil {
			return rc.index.fail("disk.reclaim", err)
		}
		rc.segments.remove(s)
		if err := rc.deps.FS.Remove(s.path); err != nil {
			return rc.failure.fail("disk.reclaim", err)
		}
	}
	return nil
}
