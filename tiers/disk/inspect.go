package disk

import (
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
)

// RecordInfo describes one record of a segment, for people.
type RecordInfo struct {
	Segment  uint64
	Offset   int64 // of the head, in bytes
	Size     int64 // head and data, in bytes
	Sequence uint64
	// Durable says that every record with a smaller sequence number was durable
	// when this one was written.
	Durable uint64
	// Tombstone holds the deletions of a tombstone; nil for a chunk.
	Tombstone []tiers.Deletion
	// Header is the header of a chunk.
	Header tiers.Header
	// Damage describes the damage of the record; nil: none.
	Damage error
}

// SegmentInfo describes a segment, for people.
type SegmentInfo struct {
	Identity Identity
	Number   uint64
	Size     int64
	Records  int
	// StrayBlocks counts blocks that belong to no record and are not empty.
	StrayBlocks int64
}

// InspectSegment calls fn for each record of the segment file name, in order. It
// changes nothing and takes no lock, so of a device in use it sees a snapshot in
// time. With data, it also reads the bytes of chunks and verifies them against
// their checksums. Errors are fn's, or *moraine.Error: NotFound, Corrupt (not a
// segment), NewerFormat, IOError.
func InspectSegment(fsys vfs.FS, name string, data bool, fn func(RecordInfo) error) (SegmentInfo, error) {
	const op = "disk.InspectSegment"
	f, err := fsys.Open(name, vfs.Read)
	if err != nil {
		return SegmentInfo{}, wrap(op, name, err)
	}
	defer f.Close()
	pool := bufpool.New(bufpool.Config{})
	defer pool.Close()
	buf := pool.TryGet(maxWindow)
	if buf == nil {
		return SegmentInfo{}, &moraine.Error{Op: op, Ref: name, Kind: moraine.NoSpace, Err: errors.New("no memory")}
	}
	defer buf.Release()
	info, err := inspect(f, buf.Bytes(), data, fn)
	if err != nil {
		return info, wrap(op, name, err)
	}
	return info, nil
}

func inspect(f vfs.File, window []byte, data bool, fn func(RecordInfo) error) (SegmentInfo, error) {
	if _, err := f.ReadAt(window[:block], 0); err != nil && !errors.Is(err, io.EOF) {
		return SegmentInfo{}, err
	}
	h, err := decodeSegmentHead(window[:block])
	if err != nil {
		return SegmentInfo{}, err
	}
	info := SegmentInfo{Identity: h.identity, Number: h.number, Size: h.size}
	sc, err := newScanner(f, h.number, h.identity.salt[:], window)
	if err != nil {
		return info, err
	}
	for {
		rec, tableErr, err := sc.next()
		if err == io.EOF {
			info.StrayBlocks = sc.strayBlocks
			return info, nil
		}
		if err != nil {
			return info, err
		}
		info.Records++
		ri := describe(&rec, tableErr)
		if data && rec.kind == kindChunk && tableErr == nil {
			intact, err := readData(f, &rec, window)
			if err != nil {
				return info, err
			}
			if !intact {
				ri.Damage = errors.New("data checksum mismatch")
			}
			sc.have = nil // the read of the data used the window
		}
		if err := fn(ri); err != nil {
			return info, err
		}
	}
}

func describe(r *record, damage error) RecordInfo {
	ri := RecordInfo{Segment: r.at.segment, Offset: r.at.off, Size: r.at.size, Sequence: r.seq,
		Durable: r.durable, Header: r.header, Damage: damage}
	if r.kind == kindTombstone {
		ri.Tombstone = make([]tiers.Deletion, 0, len(r.deletions))
		for _, d := range r.deletions {
			ri.Tombstone = append(ri.Tombstone, tiers.Deletion{ID: d.id, Below: d.below})
		}
	}
	return ri
}

// Inspect calls fn for each record of the device in dir, segment by segment, like
// InspectSegment.
func Inspect(fsys vfs.FS, dir string, data bool, fn func(RecordInfo) error) error {
	names, err := fsys.List(path.Join(dir, segmentsDir))
	if err != nil {
		return wrap("disk.Inspect", dir, err)
	}
	for _, name := range names {
		if _, ok := parseSegmentName(name); !ok {
			continue
		}
		if _, err := InspectSegment(fsys, path.Join(dir, segmentsDir, name), data, fn); err != nil {
			return fmt.Errorf("inspect %s: %w", name, err)
		}
	}
	return nil
}
