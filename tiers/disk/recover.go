package disk

import (
	"errors"
	"log/slog"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
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

// recovering brings an opened device up to date, before anything else uses it. It
// takes no lock but those of the parts that it fills.
type recovering struct {
	cfg      *Config
	deps     *Deps
	log      *slog.Logger
	identity Identity
	heads    *bufpool.Pool
	failure  *failure
	segments *segmentSet
	index    *index
	app      *appender
	reclaim  *reclaimer
	found    Recovery
}

// run brings the index up to date from the segments, and sets the counters. It
// runs before anything else uses the device. It can run again after it was
// interrupted at any point.
func (rv *recovering) run() error {
	marks, err := rv.index.marks()
	if err != nil {
		return rv.classify(err)
	}
	if err := rv.findSegments(marks); err != nil {
		return err
	}
	if err := rv.replaySegments(); err != nil {
		return rv.classify(err)
	}
	if err := rv.countChunks(); err != nil {
		return rv.classify(err)
	}
	return rv.setCounters(marks)
}

// classify turns an index found corrupt into an error that says so. It leaves
// the note that makes the next Open rebuild the index.
func (rv *recovering) classify(err error) error {
	var e *moraine.Error
	if errors.As(err, &e) {
		return err
	}
	return rv.index.fail("disk.recover", err)
}

// findSegments lists the segments. Those marked in the index are complete.
func (rv *recovering) findSegments(marks map[uint64]mark) error {
	names, err := rv.deps.FS.List(path.Join(rv.cfg.Dir, segmentsDir))
	if err != nil {
		return err
	}
	for _, name := range names {
		number, ok := parseSegmentName(name)
		if !ok {
			rv.log.Warn("foreign file ignored", "name", name)
			continue
		}
		s := newSegment(rv.cfg.Dir, number)
		info, err := rv.deps.FS.Stat(s.path)
		if err != nil {
			return err
		}
		s.size, s.end, s.sealed = info.Size, info.Size, true
		if m, marked := marks[number]; marked {
			s.complete, s.settled, s.lastSeq = true, true, m.lastSeq
		}
		rv.segments.byNumber[number] = s
	}
	for number := range marks {
		if rv.segments.byNumber[number] == nil {
			// The segment was removed and only its mark is left; or the segment was
			// lost with its chunks, which countChunks then detects.
			if err := rv.index.removeMark(number); err != nil {
				return rv.classify(err)
			}
		}
	}
	return nil
}

// replaySegments replays the records of incomplete segments.
func (rv *recovering) replaySegments() error {
	buf, err := scanBuffer(rv.heads, rv.cfg.Dir)
	if err != nil {
		return err
	}
	defer buf.Release()
	r := replayer{rv: rv, window: buf.Bytes()}
	for _, s := range rv.segments.sorted() {
		if s.complete {
			continue
		}
		if err := r.segment(s); err != nil {
			return wrap("disk.recover", s.path, err)
		}
	}
	return r.finish()
}

// countChunks counts the chunks in the index, and drops those in missing segments.
// The metadata servers learn of the loss from the next report of chunks.
func (rv *recovering) countChunks() error {
	lost := map[uint64][]moraine.ChunkID{}
	err := rv.index.scanChunks(moraine.ChunkID{}, func(e *entry) error {
		s := rv.segments.byNumber[e.at.segment]
		if s == nil {
			lost[e.at.segment] = append(lost[e.at.segment], e.header.ID)
			return nil
		}
		rv.segments.addLive(s, e.at)
		return nil
	})
	if err != nil {
		return err
	}
	for number, ids := range lost {
		rv.log.Error("segment missing", "segment", number, "chunks", len(ids))
		rv.found.LostSegments++
		rv.found.LostChunks += len(ids)
		for _, id := range ids {
			if err := rv.index.remove(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// setCounters ensures that no number is assigned twice.
func (rv *recovering) setCounters(marks map[uint64]mark) error {
	seq, number, err := rv.index.next()
	if err != nil {
		return rv.classify(err)
	}
	for n, m := range marks {
		seq, number = max(seq, m.lastSeq+1), max(number, n+1)
	}
	for n, s := range rv.segments.byNumber {
		seq, number = max(seq, s.lastSeq+1), max(number, n+1)
	}
	rv.app.flight.next, rv.app.nextSegment = seq, number
	rv.deps.Metrics.Recovered.Add(float64(rv.found.Records))
	rv.deps.Metrics.TornRecords.Add(float64(rv.found.Torn))
	return nil
}
