package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pebblefs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/internal/vfs/pebblevfs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// EntryInfo is one entry of a log as it lies on disk.
type EntryInfo struct {
	Segment     string
	Index, Term uint64
	// Kind is command, configuration, noop or barrier.
	Kind     string
	Appended time.Time
	Data     []byte   // for a command
	Members  []string // for a configuration; members without a vote are in brackets
	// Damage is why the entry cannot be trusted; Index is then its place.
	Damage error
}

// InspectLog calls fn with each entry of the log in the node directory dir, in
// order, without changing anything. Stop the node first. Damaged parts are
// reported with their place, and inspection continues at the next readable
// part. An append with a wrong checksum is damaged as a whole. An error of fn
// ends the inspection.
func InspectLog(fsys vfs.FS, dir string, fn func(EntryInfo) error) error {
	dir = filepath.Join(dir, logDir)
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		var base, id uint64
		if n, _ := fmt.Sscanf(name, "%020d-%016x"+walSuffix, &base, &id); n != 2 {
			continue
		}
		p, err := readSegment(fsys, filepath.Join(dir, name))
		if err != nil {
			if err := fn(EntryInfo{Segment: name, Index: base, Damage: err}); err != nil {
				return err
			}
			continue
		}
		if err := inspectSegment(name, base, p, fn); err != nil {
			return err
		}
	}
	return nil
}

// readSegment reads a whole segment: at most one GiB, 64 MiB by default.
func readSegment(fsys vfs.FS, name string) (p []byte, err error) {
	f, err := fsys.Open(name, vfs.Read)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	p = make([]byte, size)
	if n, err := f.ReadAt(p, 0); err != nil && !(err == io.EOF && n == len(p)) {
		return nil, err
	}
	return p, nil
}

// inspectSegment reads the frames of a segment, as scanSegment does.
func inspectSegment(name string, base uint64, p []byte, fn func(EntryInfo) error) error {
	var pending []EntryInfo
	index, from := base, int64(0)
	flush := func(damage error) error {
		for _, e := range pending {
			if e.Damage == nil {
				e.Damage = damage
			}
			if err := fn(e); err != nil {
				return err
			}
		}
		pending = pending[:0]
		return nil
	}
	for at := int64(segmentHeader); at+frameHeader <= int64(len(p)); {
		length := int64(binary.LittleEndian.Uint32(p[at+4:]))
		switch p[at] {
		case frameEntry:
			body := p[min(at+frameHeader, int64(len(p))):min(at+frameHeader+length, int64(len(p)))]
			pending = append(pending, decodeEntryInfo(name, index, body, length))
			index++
		case frameIndex:
		case frameCommit:
			var damage error
			if crc32.Checksum(p[from:at], castagnoli) != uint32(length) {
				damage = corruptf("the checksum of its append, which ends at byte %d, is wrong", at)
			}
			if err := flush(damage); err != nil {
				return err
			}
			from, length = at+frameHeader, 0
		default:
			if allZero(p[at:min(at+4096, int64(len(p)))]) {
				return flush(corruptf("its append was never completed"))
			}
			pending = append(pending, EntryInfo{Segment: name, Index: index, Damage: corruptf("no frame begins at byte %d: what follows in this segment cannot be read", at)})
			return flush(corruptf("its append was never completed"))
		}
		at += frameHeader + (length+7)&^7
	}
	return flush(corruptf("its append was never completed"))
}

func decodeEntryInfo(name string, index uint64, body []byte, length int64) EntryInfo {
	e := EntryInfo{Segment: name, Index: index}
	var l raft.Log
	if int64(len(body)) < length {
		e.Damage = corruptf("it has %d of %d bytes", len(body), length)
		return e
	}
	if err := (&wal.BinaryCodec{}).Decode(body, &l); err != nil {
		e.Damage = corruptf("it does not decode: %v", err)
		return e
	}
	if l.Index != index {
		e.Damage = corruptf("it says that it is entry %d", l.Index)
		return e
	}
	e.Term, e.Appended = l.Term, l.AppendedAt
	switch l.Type {
	case raft.LogCommand:
		e.Kind, e.Data = "command", l.Data
	case raft.LogConfiguration:
		e.Kind = "configuration"
		e.Members = membersOf(l.Data)
	case raft.LogNoop:
		e.Kind = "noop"
	case raft.LogBarrier:
		e.Kind = "barrier"
	default:
		e.Kind = l.Type.String()
	}
	return e
}

func membersOf(p []byte) (out []string) {
	defer func() { // raft panics on bytes that are no configuration
		if recover() != nil {
			out = []string{"(damaged)"}
		}
	}()
	return memberNames(raft.DecodeConfiguration(p))
}

func memberNames(c raft.Configuration) []string {
	out := []string{}
	for _, s := range c.Servers {
		name := fmt.Sprintf("%s=%s", s.ID, s.Address)
		if s.Suffrage != raft.Voter {
			name = "(" + name + ")"
		}
		out = append(out, name)
	}
	return out
}

// SnapshotInfo describes a snapshot on disk.
type SnapshotInfo struct {
	Name        string
	Index, Term uint64
	Applied     uint64 // smallest possible index of its state
	Bytes       int64  // length of its stream
	Received    bool   // from another node; otherwise taken here
	Members     []string
	Damage      error
}

// InspectSnapshots calls fn with each snapshot in the node directory dir, and reads it completely.
// It changes nothing.
func InspectSnapshots(fsys vfs.FS, dir string, fn func(SnapshotInfo) error) error {
	s := &snapshotStore{fs: fsys, dir: filepath.Join(dir, snapshotDir), metrics: NewMetrics(nil)}
	id, err := ReadIdentity(fsys, dir)
	if err != nil {
		return err
	}
	s.cluster = id.Cluster
	names, err := fsys.List(s.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		info := SnapshotInfo{Name: name}
		if snap, err := s.load(name); err != nil {
			info.Damage = err
		} else {
			info.Index, info.Term, info.Applied, info.Bytes = snap.meta.Index, snap.meta.Term, snap.applied, snap.meta.Size
			info.Received, info.Members = snap.form != snapTaken, memberNames(snap.meta.Configuration)
			info.Damage = s.verify(snap)
		}
		if err := fn(info); err != nil {
			return err
		}
	}
	return nil
}

// verify reads all of a snapshot.
func (s *snapshotStore) verify(snap *snapshot) error {
	source, err := s.source(snap)
	if err != nil {
		return err
	}
	r, err := newStreamReader(source, s.cluster)
	if err == nil {
		err = r.verify()
	}
	if err := errors.Join(err, source.Close()); err != nil {
		return err
	}
	// The stream of a checkpoint, with its checksums, is made while it is read. The original
	// checksums are in the tables' blocks.
	return readThrough(s.fs, filepath.Join(s.dir, snap.meta.ID, snapCheckpoint))
}

// readThrough reads every block of the database in dir.
func readThrough(fsys vfs.FS, dir string) (err error) {
	defer func() {
		if what := recover(); what != nil { // quietLog panics if pebble cannot continue
			err = corruptf("snapshot: %v", what)
		}
	}()
	// The lock is a file, which must not be added to the snapshot.
	db, err := pebble.Open(dir, &pebble.Options{FS: unlocked{pebblevfs.New(fsys)}, ReadOnly: true, Logger: quietLog{}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return scan(db, nil, nil, func(_, _ []byte) bool { return true })
}

// InspectState calls fn with the state in the node directory dir, opened read-only. The node must
// not run (Busy). NotFound: no node has run there yet. The state is that of the last flush, or of
// what its own log still has; entries after applied are in the node's log.
func InspectState(fsys vfs.FS, dir string, fn func(r kvtx.Reader, applied uint64) error) (err error) {
	p, err := readFile(fsys, filepath.Join(dir, stateDir, currentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return &moraine.Error{Op: "raftstore.InspectState", Ref: dir, Kind: moraine.NotFound,
			Err: fmt.Errorf("the directory has no state yet: start its server once: %w", err)}
	}
	if err != nil {
		return wrap("raftstore.InspectState", dir, err)
	}
	number, err := decodeCurrent(p)
	if err != nil {
		return wrap("raftstore.InspectState", dir, err)
	}
	s := &stateDB{fs: fsys, dir: filepath.Join(dir, stateDir)}
	db, err := openReadOnly(fsys, s.path(number))
	if errors.Is(err, vfs.ErrLocked) || errors.Is(err, syscall.EAGAIN) { // the second is the error of pebble's own lock
		return lockError(dir, vfs.ErrLocked)
	}
	if err != nil {
		return wrap("raftstore.InspectState", dir, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	index, err := applied(db)
	if err != nil {
		return err
	}
	snap := db.NewSnapshot()
	defer func() { err = errors.Join(snap.Close(), err) }()
	return fn(snapReader{snap}, index)
}

// openReadOnly opens the database in dir read-only.
func openReadOnly(fsys vfs.FS, dir string) (*pebble.DB, error) {
	return pebble.Open(dir, &pebble.Options{FS: pebblevfs.New(fsys), ReadOnly: true, Logger: quietLog{}})
}

// unlocked is a file system without locks, for files that nobody writes.
type unlocked struct{ pebblefs.FS }

// Lock implements pebblefs.FS.
func (unlocked) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// quietLog discards pebble's log.
type quietLog struct{}

func (quietLog) Infof(string, ...any)         {}
func (quietLog) Errorf(string, ...any)        {}
func (quietLog) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
