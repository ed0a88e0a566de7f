package disk

import (
	"errors"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// closeFlush limits how long Close waits for the flush of the index. The next Open
// scans what was not flushed.
const closeFlush = 10 * time.Second

// reclaimer reclaims space in the background.
type reclaimer struct {
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed when the goroutine has ended

	// flushed is closed when the flush of the index covers the marks of the
	// segments in settling. Only reclaimOnce uses them.
	flushed  <-chan struct{}
	settling []*segment

	mu    sync.Mutex // guards the fields below
	grave []dead     // records whose space is to be reclaimed, in order of death
}

// dead is a dead record of a chunk.
type dead struct {
	id moraine.ChunkID
	at extent
}

func newReclaimer() reclaimer {
	return reclaimer{stop: make(chan struct{}), stopped: make(chan struct{})}
}

// bury queues a dead record for reclaim. The record that killed it is durable.
func (d *Device) bury(id moraine.ChunkID, at extent) {
	s := d.segment(at.segment)
	if s == nil {
		return // the whole segment was removed
	}
	s.dead.Add(at.size)
	d.deadBytes.Add(at.size)
	d.reclaim.mu.Lock()
	defer d.reclaim.mu.Unlock()
	d.reclaim.grave = append(d.reclaim.grave, dead{id: id, at: at})
}

// runReclaim is the goroutine of an open device. Close ends it after all users of
// the index are done.
func (d *Device) runReclaim() {
	defer close(d.reclaim.stopped)
	ticker := d.deps.Clock.NewTicker(d.cfg.ReclaimInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := d.reclaimOnce(); err != nil {
				continue // the device has failed: the next turn ends the loop
			}
			_ = d.keepBallast() // retried at the next turn
		case <-d.reclaim.stop:
			d.lastReclaim()
			d.closeIndex()
			return
		case <-d.failed:
			return // the device reclaims nothing more
		}
	}
}

// lastReclaim seals the active segment, reclaims what it can, and flushes the
// index, so that the next Open has nothing to scan.
func (d *Device) lastReclaim() {
	d.app.mu.Lock()
	if s := d.app.active; s != nil {
		s.sealed = true
		d.app.active = nil
	}
	d.app.mu.Unlock()
	if d.Err() != nil || d.reclaimOnce() != nil {
		return
	}
	d.flushIndex()
}

// flushIndex flushes the index and waits for it, at most for closeFlush. It stops
// waiting when the device fails, since pebble would then wait for ever.
func (d *Device) flushIndex() {
	flushed, err := d.index.db.AsyncFlush()
	if err != nil {
		return
	}
	select {
	case <-flushed:
	case <-d.failed:
	case <-d.deps.Clock.After(closeFlush):
	}
}

// reclaimOnce reclaims the space of all dead records, marks the segments that
// become complete by that, and removes those without live records. Only one call
// runs at a time.
//
// The order carries the crash argument. reclaimOnce chooses the segments to mark
// before it empties the grave. At that time all their operations are in the index,
// and what they killed is in the grave or already reclaimed. It marks them only
// after the syncs of the second step, and in order. The unmarked ones are therefore
// always the last of the log.
func (d *Device) reclaimOnce() error {
	if err := d.Err(); err != nil {
		return err
	}
	ready := d.finishedSegments()
	d.reclaim.mu.Lock()
	grave := d.reclaim.grave
	d.reclaim.grave = nil
	d.reclaim.mu.Unlock()
	if err := d.giveBack(grave); err != nil {
		return err
	}
	if err := d.markComplete(ready); err != nil {
		return err
	}
	d.settle()
	return d.removeDead()
}

// finishedSegments returns the sealed segments without running operations, up to
// the first that has some.
func (d *Device) finishedSegments() []*segment {
	all := d.sortedSegments()
	d.app.mu.Lock()
	defer d.app.mu.Unlock()
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
func (d *Device) giveBack(grave []dead) error {
	var rounds [][]extent
	depth := map[moraine.ChunkID]int{}
	for _, b := range grave {
		n := depth[b.id]
		depth[b.id]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], b.at)
	}
	for _, round := range rounds {
		if err := d.punchAll(round); err != nil {
			return err
		}
	}
	return nil
}

// punchAll punches records, in any order, and makes the result durable.
func (d *Device) punchAll(records []extent) error {
	bySegment := map[*segment][]extent{}
	for _, at := range records {
		if s := d.segment(at.segment); s != nil {
			bySegment[s] = append(bySegment[s], at)
		}
	}
	for s, of := range bySegment {
		f, ok, err := s.acquire(d.deps.FS)
		if err != nil {
			return d.fail("disk.reclaim", err)
		}
		if !ok {
			continue
		}
		err = d.punch(s, f, of)
		s.release()
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) punch(s *segment, f vfs.File, records []extent) error {
	total := int64(0)
	for _, at := range records {
		if err := d.punchOne(f, at); err != nil {
			return d.fail("disk.reclaim", err)
		}
		total += at.size
	}
	if err := d.syncSegment(s); err != nil {
		return err
	}
	s.dead.Add(-total)
	d.deadBytes.Add(-total)
	d.deps.Metrics.Reclaimed.Add(float64(total))
	return nil
}

// punchOne makes a dead record unfindable and returns its space where the file
// system supports it. Otherwise it only erases the head.
func (d *Device) punchOne(f vfs.File, at extent) error {
	err := f.PunchHole(at.off, at.size)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	zero, err := d.scanBuffer()
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
func (d *Device) markComplete(ready []*segment) error {
	if len(ready) == 0 {
		return nil
	}
	for _, s := range ready {
		if err := d.trim(s); err != nil {
			return err
		}
		if err := d.index.setMark(s); err != nil {
			return d.indexError("disk.reclaim", err)
		}
		s.complete = true
	}
	last := ready[len(ready)-1]
	if err := d.index.setNext(last.lastSeq+1, last.number+1); err != nil {
		return d.indexError("disk.reclaim", err)
	}
	flushed, err := d.index.db.AsyncFlush()
	if err != nil {
		return d.indexError("disk.reclaim", err)
	}
	// This flush supersedes one that still runs: it comes after it.
	d.reclaim.flushed, d.reclaim.settling = flushed, append(d.reclaim.settling, ready...)
	return nil
}

// settle records the segments whose marks have become durable.
func (d *Device) settle() {
	if d.reclaim.flushed == nil {
		return
	}
	select {
	case <-d.reclaim.flushed:
	default:
		return
	}
	for _, s := range d.reclaim.settling {
		s.settled = true
	}
	d.reclaim.flushed, d.reclaim.settling = nil, nil
}

// trim cuts off the part of a sealed segment that holds no record. This need not be
// durable.
func (d *Device) trim(s *segment) error {
	if s.end >= s.size {
		return nil
	}
	f, ok, err := s.acquire(d.deps.FS)
	if err != nil || !ok {
		return err
	}
	defer s.release()
	if err := f.Truncate(s.end); err != nil {
		return d.fail("disk.trim", err)
	}
	s.size = s.end
	return nil
}

// removeDead removes the settled segments without live records. The space of
// everything that they killed is reclaimed, and the index has no entry of it, so
// nothing needs their tombstones. If a crash loses a removal, the segment returns.
// It then holds only tombstones that have nothing left to do.
func (d *Device) removeDead() error {
	for _, s := range d.sortedSegments() {
		if !s.settled || s.live.Load() != 0 || s.dead.Load() != 0 {
			continue
		}
		if err := d.index.removeMark(s.number); err != nil {
			return d.indexError("disk.reclaim", err)
		}
		d.segMu.Lock()
		delete(d.segments, s.number)
		d.segMu.Unlock()
		s.retire()
		if err := d.deps.FS.Remove(s.path); err != nil {
			return d.fail("disk.reclaim", err)
		}
	}
	return nil
}
