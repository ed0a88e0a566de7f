package raftstore

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft-wal/types"

	"github.com/morainefs/moraine/internal/vfs"
)

const (
	metaFile    = "META"
	metaMagic   = "MRNLOGM1"
	metaVersion = 1
	walSuffix   = ".wal"
)

// metaStore has what the log must remember besides its entries: the list of segment files, and
// raft's own few values (term, vote). It is one small file that is replaced whole on each change, a
// few times per election and once per segment.
//
// It implements types.MetaStore. All methods may be called concurrently. After a failed write every
// later write fails too, because the content of the disk is unknown.
type metaStore struct {
	fs  vfs.FS
	dir string

	mu     sync.Mutex // held during writes, which must not overtake each other
	state  types.PersistentState
	values map[string][]byte
	failed error
}

var _ types.MetaStore = (*metaStore)(nil)

func newMetaStore(fsys vfs.FS, dir string) *metaStore {
	return &metaStore{fs: fsys, dir: dir, values: map[string][]byte{}}
}

// open reads the file. A missing file is an empty store, unless there are segments: the log would
// treat them as leftovers and delete them.
func (m *metaStore) open() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := readFile(m.fs, filepath.Join(m.dir, metaFile))
	if errors.Is(err, fs.ErrNotExist) {
		return m.refuseOrphans()
	}
	if err != nil {
		return err
	}
	m.state, m.values, err = decodeMeta(p)
	if err != nil {
		return err
	}
	// The file may be from a process that ended between the rename and the sync of the directory:
	// make it durable.
	return m.fs.SyncDir(m.dir)
}

func (m *metaStore) refuseOrphans() error {
	names, err := m.fs.List(m.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, walSuffix) {
			return corruptf("%s has log segments but no %s file", m.dir, metaFile)
		}
	}
	return nil
}

// Load implements types.MetaStore.
func (m *metaStore) Load(string) (types.PersistentState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cloneSegments(m.state), nil
}

// CommitState implements types.MetaStore.
func (m *metaStore) CommitState(s types.PersistentState) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commit(cloneSegments(s), m.values)
}

// GetStable implements types.MetaStore.
func (m *metaStore) GetStable(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.values[string(key)]), nil
}

// SetStable implements types.MetaStore. A nil value deletes.
func (m *metaStore) SetStable(key, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	values := maps.Clone(m.values)
	if value == nil {
		delete(values, string(key))
	} else {
		values[string(key)] = slices.Clone(value)
	}
	return m.commit(m.state, values)
}

// commit makes state and values durable, then current.
func (m *metaStore) commit(state types.PersistentState, values map[string][]byte) error {
	if m.failed != nil {
		return m.failed
	}
	if err := replaceFile(m.fs, m.dir, metaFile, encodeMeta(state, values)); err != nil {
		m.failed = err
		return err
	}
	m.state, m.values = state, values
	return nil
}

// Close implements types.MetaStore.
func (m *metaStore) Close() error { return nil }

func cloneSegments(s types.PersistentState) types.PersistentState {
	s.Segments = slices.Clone(s.Segments)
	return s
}

// encodeMeta writes the body described in docs/formats/metastore.md.
func encodeMeta(s types.PersistentState, values map[string][]byte) []byte {
	le := binary.LittleEndian
	body := le.AppendUint64(nil, s.NextSegmentID)
	body = le.AppendUint32(body, uint32(len(s.Segments)))
	for _, seg := range s.Segments {
		for _, v := range []uint64{
			seg.ID, seg.BaseIndex, seg.MinIndex, seg.MaxIndex, seg.Codec, seg.IndexStart,
			unixNano(seg.CreateTime), unixNano(seg.SealTime),
		} {
			body = le.AppendUint64(body, v)
		}
		body = le.AppendUint32(body, seg.SizeLimit)
	}
	body = le.AppendUint32(body, uint32(len(values)))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		body = appendBytes(body, []byte(key))
		body = appendBytes(body, values[key])
	}
	return seal(metaMagic, metaVersion, body)
}

func decodeMeta(p []byte) (s types.PersistentState, values map[string][]byte, err error) {
	body, err := unseal(metaMagic, metaVersion, p)
	if err != nil {
		return s, nil, err
	}
	r := reader{p: body}
	s.NextSegmentID = r.u64()
	for n := r.u32(); n > 0 && !r.bad; n-- {
		seg := types.SegmentInfo{
			ID: r.u64(), BaseIndex: r.u64(), MinIndex: r.u64(), MaxIndex: r.u64(),
			Codec: r.u64(), IndexStart: r.u64(),
		}
		seg.CreateTime, seg.SealTime = fromUnixNano(r.u64()), fromUnixNano(r.u64())
		seg.SizeLimit = r.u32()
		s.Segments = append(s.Segments, seg)
	}
	values = map[string][]byte{}
	last := ""
	for n := r.u32(); n > 0 && !r.bad; n-- {
		key := string(r.bytes())
		value := slices.Clone(r.bytes())
		if value == nil {
			value = []byte{}
		}
		r.bad = r.bad || (len(values) > 0 && key <= last)
		values[key], last = value, key
	}
	if !r.done() {
		return types.PersistentState{}, nil, corruptf("log metadata does not parse")
	}
	return s, values, nil
}

// unixNano maps the zero time, which means "not yet", to 0.
func unixNano(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

func fromUnixNano(v uint64) time.Time {
	if v == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(v)).UTC()
}
