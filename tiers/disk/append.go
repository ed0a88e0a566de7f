package disk

import (
	"context"
	"fmt"
	"path"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/vfs"
)

// appender allocates space in the active segment, and assigns sequence numbers.
type appender struct {
	cfg      *Config
	deps     *Deps
	identity Identity
	heads    *bufpool.Pool // for heads; a holder of one waits for no other buffer
	failure  *failure
	segments *segmentSet
	index    *index

	rolling sync.Mutex // held while the next active segment is made, I/O included
	scratch []byte     // one aligned block; the holder of rolling uses it

	mu          sync.Mutex // guards the fields below
	active      *segment   // nil before the first record
	nextSegment uint64
	flight      flight
	pending     int64 // bytes of allocated records that are neither live nor void yet
}

// flight tracks the sequence numbers that are assigned but not yet durable.
type flight struct {
	next  uint64
	first uint64 // sequence number of open[0]
	open  []bool // true: assigned and not yet durable
}

// take assigns the next number. It also returns the smallest number that is not
// durable yet.
func (f *flight) take() (seq, durable uint64) {
	if len(f.open) == 0 {
		f.first = f.next
	}
	seq = f.next
	f.next++
	f.open = append(f.open, true)
	return seq, f.first
}

// landed marks the record with this number as durable, or as durably void.
func (f *flight) landed(seq uint64) {
	f.open[seq-f.first] = false
	n := 0
	for n < len(f.open) && !f.open[n] {
		n++
	}
	f.open = f.open[n:]
	f.first += uint64(n)
}

// slot is the place of a record that is about to be written.
type slot struct {
	seg          *segment
	at           extent
	seq, durable uint64
}

// reserve allocates space for a record of size bytes. It starts a new segment if
// the active one is too full. The caller must pass each slot to finish. Errors:
// NoSpace, IOError.
func (a *appender) reserve(size int64) (slot, error) {
	for {
		a.mu.Lock()
		if s := a.active; s != nil && s.end+size <= s.size {
			sl := slot{seg: s, at: extent{segment: s.number, off: s.end, size: size}}
			sl.seq, sl.durable = a.flight.take()
			s.end += size
			s.lastSeq = sl.seq
			s.ops++
			a.pending += size
			a.mu.Unlock()
			return sl, nil
		}
		a.mu.Unlock()
		if err := a.roll(size); err != nil {
			return slot{}, err
		}
	}
}

// finish ends a slot: its operation changes nothing more in the index.
func (a *appender) finish(sl slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sl.seg.ops--
	a.pending -= sl.at.size
}

// roll replaces the active segment if it has no room for size bytes.
func (a *appender) roll(size int64) error {
	a.rolling.Lock()
	defer a.rolling.Unlock()
	a.mu.Lock()
	if s := a.active; s != nil && s.end+size <= s.size {
		a.mu.Unlock()
		return nil // another caller already replaced it
	}
	number := a.nextSegment
	a.nextSegment++ // consumed even if the next steps fail
	a.mu.Unlock()

	if err := a.failure.err(); err != nil {
		return err
	}
	next, err := a.createSegment(number, size)
	if err != nil {
		return err
	}
	a.segments.add(next)
	a.mu.Lock()
	if a.active != nil {
		a.active.sealed = true
	}
	a.active = next
	a.mu.Unlock()
	return nil
}

// createSegment makes a segment with room for a record of size bytes. The segment's
// name is durable on return. Its first block becomes durable with the first record,
// by the same sync. A crash may lose a segment without records.
func (a *appender) createSegment(number uint64, size int64) (*segment, error) {
	s := newSegment(a.cfg.Dir, number)
	f, err := a.deps.FS.Open(s.path, vfs.Create|vfs.Exclusive|vfs.Direct)
	if err != nil {
		return nil, a.writeError("disk.createSegment", err)
	}
	s.file = f
	if s.size, err = a.allocate(f, size); err == nil {
		err = a.writeSegmentHead(s)
	}
	if err == nil {
		err = a.deps.FS.SyncDir(path.Join(a.cfg.Dir, segmentsDir))
	}
	if err != nil {
		s.retire()
		// If the name survives, it is an empty segment, which the next Open
		// removes.
		_ = a.deps.FS.Remove(s.path)
		return nil, a.writeError("disk.createSegment", err)
	}
	s.end = block
	return s, nil
}

// smallSegment is the size in bytes to which segments shrink as the file system
// fills up. Below it they shrink only to the space that is left.
const smallSegment = 1 << 20

// allocate reserves the space of a new segment. It takes the configured size, or
// less where the file system has less, down to the size of one record.
func (a *appender) allocate(f vfs.File, record int64) (int64, error) {
	least := record + block
	want := max(a.cfg.SegmentBytes, least)
	if u, err := a.deps.FS.Usage(a.cfg.Dir); err == nil {
		// The last free space is taken in smaller pieces, so that the space a
		// segment reserves does not prevent writes of the index.
		want = max(min(want, int64(u.Free/8)/block*block), min(want, smallSegment), least)
	}
	for {
		err := f.Allocate(0, want)
		if err == nil {
			return want, nil
		}
		if !isNoSpace(err) || want == least {
			return 0, err
		}
		want = max(want/2/block*block, least)
	}
}

func (a *appender) writeSegmentHead(s *segment) error {
	h := segmentHead{identity: a.identity, number: s.number, size: s.size}
	h.encode(a.scratch)
	_, err := s.file.WriteAt(a.scratch, 0)
	return err
}

// writeError classifies the error of a write that left nothing behind. A full file
// system is NoSpace. Every other error takes the device out of service.
func (a *appender) writeError(op string, err error) error {
	if isNoSpace(err) {
		return &moraine.Error{Op: op, Ref: a.cfg.Dir, Kind: moraine.NoSpace, Err: err}
	}
	return a.failure.fail(op, err)
}

// appendix is a record to be appended.
type appendix struct {
	headSize int64
	// data holds whole, aligned blocks. It is empty for a tombstone.
	data []byte
	// encode writes the record's head for the slot.
	encode func(head []byte, sl slot)
	// apply updates the index after the record is durable. If apply fails, the
	// device goes out of service.
	apply func(sl slot) error
}

// append writes a record, makes it durable and applies it. ctx ends only the wait
// for a buffer at the beginning. After that, append always finishes, so an error
// never leaves a record that a later scan could find. Errors: Canceled, Timeout,
// NoSpace (nothing is left of the record), IOError.
func (a *appender) append(ctx context.Context, r appendix) error {
	head, err := a.heads.Get(ctx, int(r.headSize))
	if err != nil {
		return err
	}
	defer head.Release()
	sl, err := a.reserve(r.headSize + int64(len(r.data)))
	if err != nil {
		return err
	}
	defer a.finish(sl)
	r.encode(head.Bytes(), sl)
	if err := a.write(sl, head.Bytes(), r.data); err != nil {
		return err
	}
	if err := a.segments.sync(sl.seg); err != nil {
		return err
	}
	a.landed(sl)
	if err := r.apply(sl); err != nil {
		return a.index.fail("disk.append", err)
	}
	return nil
}

func (a *appender) landed(sl slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flight.landed(sl.seq)
}

func (a *appender) write(sl slot, head, data []byte) error {
	bufs := [][]byte{head, data}
	if len(data) == 0 {
		bufs = bufs[:1]
	}
	n, err := vfs.WriteAll(sl.seg.file, bufs, sl.at.off)
	if err == nil {
		a.deps.Metrics.WrittenBytes.Add(float64(n))
		return nil
	}
	if !isNoSpace(err) {
		return a.failure.fail("disk.write", err)
	}
	return a.void(sl, head, err)
}

// void ensures that no scan ever finds a record that could not be written whole. It
// overwrites the head with zeros, durably, before a later head can state that all
// records up to there are durable. If this fails too, the device goes out of
// service.
func (a *appender) void(sl slot, head []byte, cause error) error {
	clear(head)
	if _, err := sl.seg.file.WriteAt(head, sl.at.off); err != nil {
		return a.failure.fail("disk.void", fmt.Errorf("%w, after %w", err, cause))
	}
	if err := a.segments.sync(sl.seg); err != nil {
		return err
	}
	a.landed(sl)
	return &moraine.Error{Op: "disk.write", Ref: a.cfg.Dir, Kind: moraine.NoSpace, Err: cause}
}
