package disk

import (
	"errors"
	"fmt"
	"io"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// replayer replays the records of incomplete segments, in order. A record waits
// until a later head vouches for it: until the `durable` number of that head is
// greater than the record's number. At the end, the replayer reads and checksums
// the records still waiting.
type replayer struct {
	rv     *recovering
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
	rv := r.rv
	f, _, err := s.acquire(rv.deps.FS)
	if err != nil {
		return err
	}
	defer s.release()
	// The bytes that a killed process wrote may be only in a cache. They must be on
	// the medium before recovery trusts them.
	if err := f.Sync(); err != nil {
		return rv.failure.fail("disk.recover", err)
	}
	if s.size < block {
		return nil // created, not yet written
	}
	if err := r.checkHead(f, s); err != nil {
		return err
	}
	sc, err := newScanner(f, s.number, rv.identity.salt[:], r.window)
	if err != nil {
		return err
	}
	rv.found.Segments++
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
	rv.found.CorruptBlocks += sc.strayBlocks
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
		r.rv.log.Warn("segment head damaged or never written", "segment", s.number, "err", err)
	case h.identity.Device != r.rv.identity.Device || h.number != s.number:
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
	r.rv.found.Records++
	if w.tableErr != nil {
		r.rv.found.CorruptRecords++
		r.rv.log.Error("corrupt record skipped", "segment", w.seg.number, "offset", w.rec.at.off,
			"chunk", w.rec.header.ID.String(), "err", w.tableErr)
		return nil
	}
	return r.apply(&w.rec)
}

// finish applies or voids the records that no head vouches for. All voids are
// durable before it returns, and so before any new head is written. The intact
// records become durable too. The process may have died between their write and
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
			r.rv.found.Torn++
			if err := r.void(w); err != nil {
				return wrap("disk.recover", w.seg.path, err)
			}
			continue
		}
		r.rv.found.Records++
		if err := r.apply(&w.rec); err != nil {
			return err
		}
	}
	for s := range unsynced {
		if err := s.file.Sync(); err != nil {
			return r.rv.failure.fail("disk.recover", err)
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

// markOtherDead marks the record dead that an index entry names, unless it is the victim
// that its killer names. If it is not, the medium has lost a record between the
// two.
func (r *replayer) markOtherDead(e *entry, victim extent) {
	if e.at != victim {
		r.rv.reclaim.markDead(e.header.ID, e.at)
	}
}

// apply replays one record. An index entry made by a later record stays as it is.
func (r *replayer) apply(rec *record) error {
	rv := r.rv
	if rec.kind == kindTombstone {
		for _, del := range rec.deletions {
			e, found, err := rv.index.lookup(del.id)
			if err != nil {
				return err
			}
			if found && e.seq < rec.seq && e.header.Version < del.below {
				if err := rv.index.remove(del.id); err != nil {
					return err
				}
				r.markOtherDead(&e, del.victim)
			}
			rv.reclaim.markDead(del.id, del.victim)
		}
		return nil
	}
	if rec.header.Cluster != rv.identity.Cluster {
		rv.found.CorruptRecords++
		return nil
	}
	e, found, err := rv.index.lookup(rec.header.ID)
	if err != nil {
		return err
	}
	newer := !found || e.seq < rec.seq
	if found && newer {
		r.markOtherDead(&e, rec.replaces)
	}
	if rec.replaces.segment != 0 {
		rv.reclaim.markDead(rec.header.ID, rec.replaces)
	}
	if !newer {
		return nil
	}
	return rv.index.set(&entry{seq: rec.seq, at: rec.at, header: rec.header})
}
