package disk

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/vfs"
)

// Recovery reports what Open found.
type Recovery struct {
	// Rebuilt is true if the index was lost, corrupt or another device's.
	Rebuilt bool
	// Segments and Records are the numbers that were scanned.
	Segments, Records int
	// Torn counts records that were being written when the device stopped. Recovery
	// voided them: no Put of them had returned.
	Torn int
	// CorruptRecords counts records with a damaged table; recovery skips them.
	CorruptRecords int
	// CorruptBlocks counts blocks that belong to no record and are not empty, such
	// as those after a torn or corrupt head.
	CorruptBlocks int64
	// LostSegments counts segments that the index names and that are missing;
	// LostChunks counts the chunks in them.
	LostSegments, LostChunks int
}

// recover brings the index up to date from the segments, and sets the counters. It
// runs before anything else uses the device. It can run again after it was
// interrupted at any point.
func (d *Device) recover() error {
	marks, err := d.index.marks()
	if err != nil {
		return d.recoverError(err)
	}
	if err := d.findSegments(marks); err != nil {
		return err
	}
	if err := d.replaySegments(); err != nil {
		return d.recoverError(err)
	}
	if err := d.countChunks(); err != nil {
		return d.recoverError(err)
	}
	return d.setCounters(marks)
}

// recoverError turns an index found corrupt into an error that says so. It leaves
// the note that makes the next Open rebuild the index.
func (d *Device) recoverError(err error) error {
	var e *moraine.Error
	if errors.As(err, &e) {
		return err
	}
	return d.indexError("disk.recover", err)
}

// findSegments lists the segments. Those marked in the index are complete.
func (d *Device) findSegments(marks map[uint64]mark) error {
	names, err := d.deps.FS.List(path.Join(d.cfg.Dir, segmentsDir))
	if err != nil {
		return err
	}
	for _, name := range names {
		number, ok := parseSegmentName(name)
		if !ok {
			d.log.Warn("foreign file ignored", "name", name)
			continue
		}
		s := newSegment(d.cfg.Dir, number)
		info, err := d.deps.FS.Stat(s.path)
		if err != nil {
			return err
		}
		s.size, s.end, s.sealed = info.Size, info.Size, true
		if m, marked := marks[number]; marked {
			s.complete, s.settled, s.lastSeq = true, true, m.lastSeq
		}
		d.segments[number] = s
	}
	for number := range marks {
		if d.segments[number] == nil {
			// The segment was removed and only its mark is left; or the segment was
			// lost with its chunks, which countChunks then detects.
			if err := d.index.removeMark(number); err != nil {
				return d.recoverError(err)
			}
		}
	}
	return nil
}

// sortedSegments returns the segments in order, which is the order of their
// records.
func (d *Device) sortedSegments() []*segment {
	d.segMu.RLock()
	defer d.segMu.RUnlock()
	all := make([]*segment, 0, len(d.segments))
	for _, s := range d.segments {
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

// replaySegments replays the records of incomplete segments.
func (d *Device) replaySegments() error {
	buf, err := d.scanBuffer()
	if err != nil {
		return err
	}
	defer buf.Release()
	r := replayer{d: d, window: buf.Bytes()}
	for _, s := range d.sortedSegments() {
		if s.complete {
			continue
		}
		if err := r.segment(s); err != nil {
			return wrap("disk.recover", s.path, err)
		}
	}
	return r.finish()
}

// scanBuffer lends the window of a scan.
func (d *Device) scanBuffer() (*bufpool.Buffer, error) {
	if buf := d.heads.TryGet(maxWindow); buf != nil {
		return buf, nil
	}
	return nil, &moraine.Error{Op: "disk.scan", Ref: d.cfg.Dir, Kind: moraine.Unavailable,
		Err: errors.New("no buffer to scan with: the buffer pool is too small")}
}

// countChunks counts the chunks in the index, and drops those in missing segments.
// The metadata servers learn of the loss from the next report of chunks.
func (d *Device) countChunks() error {
	lost := map[uint64][]moraine.ChunkID{}
	err := d.scanChunks(moraine.ChunkID{}, func(e *entry) error {
		s := d.segments[e.at.segment]
		if s == nil {
			lost[e.at.segment] = append(lost[e.at.segment], e.header.ID)
			return nil
		}
		d.addLive(s, e.at)
		return nil
	})
	if err != nil {
		return err
	}
	for number, ids := range lost {
		d.log.Error("segment missing", "segment", number, "chunks", len(ids))
		d.recovery.LostSegments++
		d.recovery.LostChunks += len(ids)
		for _, id := range ids {
			if err := d.index.remove(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// setCounters ensures that no number is assigned twice.
func (d *Device) setCounters(marks map[uint64]mark) error {
	seq, number, err := d.index.next()
	if err != nil {
		return d.recoverError(err)
	}
	for n, m := range marks {
		seq, number = max(seq, m.lastSeq+1), max(number, n+1)
	}
	for n, s := range d.segments {
		seq, number = max(seq, s.lastSeq+1), max(number, n+1)
	}
	d.app.flight.next, d.app.nextSegment = seq, number
	d.deps.Metrics.Recovered.Add(float64(d.recovery.Records))
	d.deps.Metrics.TornRecords.Add(float64(d.recovery.Torn))
	return nil
}

// replayer replays the records of incomplete segments, in order. A record waits
// until a later head vouches for it: until the `durable` number of that head is
// greater than the record's number. At the end, the replayer reads and checksums
// the records still waiting.
type replayer struct {
	d      *Device
	window []byte
	vouch  uint64 // every record with a smaller number was durable
	wait   []waiting
}

type waiting struct {
	seg      *segment
	rec      record
	tableErr error
}

// segment scans one segment.
func (r *replayer) segment(s *segment) error {
	d := r.d
	f, _, err := s.acquire(d.deps.FS)
	if err != nil {
		return err
	}
	defer s.release()
	// The bytes that a killed process wrote may be only in a cache. They must be on
	// the medium before recovery trusts them.
	if err := f.Sync(); err != nil {
		return d.fail("disk.recover", err)
	}
	if s.size < block {
		return nil // created, not yet written
	}
	if err := r.checkHead(f, s); err != nil {
		return err
	}
	sc, err := newScanner(f, s.number, d.identity.salt[:], r.window)
	if err != nil {
		return err
	}
	d.recovery.Segments++
	for {
		rec, tableErr, err := sc.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		s.lastSeq = rec.seq
		if err := r.add(waiting{seg: s, rec: rec, tableErr: tableErr}); err != nil {
			return err
		}
	}
	s.end = max(sc.used, block)
	d.recovery.CorruptBlocks += sc.strayBlocks
	return nil
}

// checkHead checks a segment's first block. Damage is only a warning: the number is
// also in the file name, and the salt in the device's identity.
func (r *replayer) checkHead(f vfs.File, s *segment) error {
	if _, err := f.ReadAt(r.window[:block], 0); err != nil {
		return err
	}
	h, err := decodeSegmentHead(r.window[:block])
	switch {
	case errors.Is(err, moraine.NewerFormat):
		return err
	case err != nil:
		r.d.log.Warn("segment head damaged or never written", "segment", s.number, "err", err)
	case h.identity.Device != r.d.identity.Device || h.number != s.number:
		return &moraine.Error{Op: "disk.recover", Ref: s.path, Kind: moraine.Corrupt,
			Err: fmt.Errorf("file is segment %d of device %s", h.number, h.identity.Device)}
	}
	return nil
}

// add takes the next record, and applies those that it vouches for.
func (r *replayer) add(w waiting) error {
	r.wait = append(r.wait, w)
	r.vouch = max(r.vouch, w.rec.durable)
	n := 0
	for ; n < len(r.wait) && r.wait[n].rec.seq < r.vouch; n++ {
		if err := r.vouched(&r.wait[n]); err != nil {
			return err
		}
	}
	r.wait = r.wait[n:]
	return nil
}

// vouched applies a record that was durable. If its table is damaged, the medium
// damaged it later.
func (r *replayer) vouched(w *waiting) error {
	r.d.recovery.Records++
	if w.tableErr != nil {
		r.d.recovery.CorruptRecords++
		r.d.log.Error("corrupt record skipped", "segment", w.seg.number, "offset", w.rec.at.off,
			"chunk", w.rec.header.ID.String(), "err", w.tableErr)
		return nil
	}
	return r.apply(&w.rec)
}

// finish applies or voids the records that no head vouches for. All voids are
// durable before it returns, and so before any new head is written. The intact
// records become durable too: the process may have died between their write and
// their sync, and a reader that finds a chunk here takes it as durable.
func (r *replayer) finish() error {
	unsynced := map[*segment]bool{}
	for i := range r.wait {
		w := &r.wait[i]
		intact, err := r.intact(w)
		if err != nil {
			return wrap("disk.recover", w.seg.path, err)
		}
		unsynced[w.seg] = true
		if !intact {
			r.d.recovery.Torn++
			if err := r.void(w); err != nil {
				return wrap("disk.recover", w.seg.path, err)
			}
			continue
		}
		r.d.recovery.Records++
		if err := r.apply(&w.rec); err != nil {
			return err
		}
	}
	for s := range unsynced {
		if err := s.file.Sync(); err != nil {
			return r.d.fail("disk.recover", err)
		}
	}
	return nil
}

func (r *replayer) intact(w *waiting) (bool, error) {
	if w.tableErr != nil {
		return false, nil
	}
	if w.rec.kind != kindChunk {
		return true, nil
	}
	return readData(w.seg.file, &w.rec, r.window)
}

// void overwrites the head of a torn record.
func (r *replayer) void(w *waiting) error {
	clear(r.window[:block])
	_, err := w.seg.file.WriteAt(r.window[:block], w.rec.at.off)
	return err
}

// buryOther buries the record that an index entry names, unless it is the victim
// that its killer names. If it is not, the medium has lost a record between the
// two.
func (r *replayer) buryOther(e *entry, victim extent) {
	if e.at != victim {
		r.d.bury(e.header.ID, e.at)
	}
}

// apply replays one record. An index entry made by a later record stays as it is.
func (r *replayer) apply(rec *record) error {
	d := r.d
	if rec.kind == kindTombstone {
		for _, del := range rec.deletions {
			e, found, err := d.lookup(del.id)
			if err != nil {
				return err
			}
			if found && e.seq < rec.seq && e.header.Version < del.below {
				if err := d.index.remove(del.id); err != nil {
					return err
				}
				r.buryOther(&e, del.victim)
			}
			d.bury(del.id, del.victim)
		}
		return nil
	}
	if rec.header.Cluster != d.identity.Cluster {
		d.recovery.CorruptRecords++
		return nil
	}
	e, found, err := d.lookup(rec.header.ID)
	if err != nil {
		return err
	}
	newer := !found || e.seq < rec.seq
	if found && newer {
		r.buryOther(&e, rec.replaces)
	}
	if rec.replaces.segment != 0 {
		d.bury(rec.header.ID, rec.replaces)
	}
	if !newer {
		return nil
	}
	return d.index.set(&entry{seq: rec.seq, at: rec.at, header: rec.header})
}
