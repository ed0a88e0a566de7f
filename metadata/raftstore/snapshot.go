package raftstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
)

const (
	snapMetaFile    = "META"
	snapMetaMagic   = "MRNSNPM1"
	snapMetaVersion = 1
	snapCheckpoint  = "db"
	snapPrefix      = "snap-"
	snapTmpPrefix   = "tmp-"
)

// snapshotStore keeps the newest snapshot of the state as a pebble checkpoint. A snapshot taken
// here is hard links into the state; one from another node is the received files. It is turned into
// a stream when a follower needs it.
//
// It implements raft.SnapshotStore. All methods may be called concurrently.
type snapshotStore struct {
	fs      vfs.FS
	dir     string
	cluster moraine.UUID
	state   *stateDB
	clock   clock.Clock
	metrics *Metrics

	// hold is how long the log is kept from a snapshot on after that snapshot was read; see
	// heldFrom.
	hold time.Duration

	mu    sync.Mutex
	snaps []*snapshot // newest first
	next  uint64      // number of the next snapshot made here
	// held has the time until which the log is kept for each snapshot that was
	// read; zero while it is being read.
	held map[*snapshot]time.Time
}

var _ raft.SnapshotStore = (*snapshotStore)(nil)

// snapForm says where a snapshot comes from.
type snapForm uint16

const (
	snapTaken    snapForm = 1 // taken here
	snapReceived snapForm = 2 // received from another node
)

// snapshot is a complete snapshot.
type snapshot struct {
	meta    raft.SnapshotMeta
	number  uint64 // order in which they were made here
	applied uint64 // smallest possible index of its state
	form    snapForm
	made    time.Time // zero if an earlier process made it
	readers int
	retired bool // removed when its last reader closes
}

func openSnapshots(cfg *Config, deps *Deps, state *stateDB) (*snapshotStore, error) {
	s := &snapshotStore{
		fs: deps.FS, dir: filepath.Join(cfg.Dir, snapshotDir), cluster: cfg.Cluster,
		state: state, clock: deps.Clock, metrics: deps.Metrics, hold: cfg.LogRetention, held: map[*snapshot]time.Time{},
	}
	names, err := s.fs.List(s.dir)
	if err != nil {
		return nil, err
	}
	if err := s.fs.SyncDir(s.dir); err != nil { // a rename by a killed process
		return nil, err
	}
	for _, name := range names {
		if strings.HasPrefix(name, snapTmpPrefix) {
			if err := s.fs.RemoveAll(filepath.Join(s.dir, name)); err != nil {
				return nil, err
			}
			continue
		}
		snap, err := s.load(name)
		if err != nil {
			return nil, fmt.Errorf("snapshot %s: %w", name, err)
		}
		s.snaps = append(s.snaps, snap)
		s.next = max(s.next, snap.number)
	}
	s.sort()
	return s, s.retire()
}

func (s *snapshotStore) sort() {
	slices.SortFunc(s.snaps, func(a, b *snapshot) int {
		return -cmp.Or(cmp.Compare(a.meta.Index, b.meta.Index),
			cmp.Compare(a.meta.Term, b.meta.Term), cmp.Compare(a.number, b.number))
	})
}

func (s *snapshotStore) load(name string) (*snapshot, error) {
	p, err := readFile(s.fs, filepath.Join(s.dir, name, snapMetaFile))
	if err != nil {
		return nil, err
	}
	snap, err := decodeSnapMeta(p)
	if err != nil {
		return nil, err
	}
	digits, _ := strings.CutPrefix(name, snapPrefix)
	if snap.number, err = strconv.ParseUint(digits, 10, 64); err != nil {
		return nil, corruptf("not the name of a snapshot")
	}
	snap.meta.ID = name
	return snap, nil
}

func (s *snapshot) encode() []byte {
	le := binary.LittleEndian
	body := le.AppendUint64(nil, s.meta.Index)
	body = le.AppendUint64(body, s.meta.Term)
	body = le.AppendUint64(body, s.applied)
	body = le.AppendUint64(body, s.meta.ConfigurationIndex)
	body = le.AppendUint64(body, uint64(s.meta.Size))
	body = le.AppendUint16(body, uint16(s.form))
	body = le.AppendUint32(body, uint32(len(s.meta.Configuration.Servers)))
	for _, srv := range s.meta.Configuration.Servers {
		body = le.AppendUint16(body, uint16(srv.Suffrage))
		body = appendBytes(body, []byte(srv.ID))
		body = appendBytes(body, []byte(srv.Address))
	}
	return seal(snapMetaMagic, snapMetaVersion, body)
}

func decodeSnapMeta(p []byte) (*snapshot, error) {
	body, err := unseal(snapMetaMagic, snapMetaVersion, p)
	if err != nil {
		return nil, err
	}
	r := reader{p: body}
	s := &snapshot{meta: raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: r.u64(), Term: r.u64()}}
	s.applied = r.u64()
	s.meta.ConfigurationIndex = r.u64()
	s.meta.Size = int64(r.u64())
	s.form = snapForm(r.u16())
	for n := r.u32(); n > 0 && !r.bad; n-- {
		s.meta.Configuration.Servers = append(s.meta.Configuration.Servers, raft.Server{
			Suffrage: raft.ServerSuffrage(r.u16()),
			ID:       raft.ServerID(r.bytes()),
			Address:  raft.ServerAddress(r.bytes()),
		})
	}
	if !r.done() || s.form < snapTaken || s.form > snapReceived {
		return nil, corruptf("snapshot metadata does not parse")
	}
	return s, nil
}

// newest returns the newest snapshot; nil if there is none.
func (s *snapshotStore) newest() *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.snaps) == 0 {
		return nil
	}
	return s.snaps[0]
}

// newestEnd returns the last index and term of the newest snapshot; 0 and 0 if there is none.
func (s *snapshotStore) newestEnd() (index, term uint64) {
	if snap := s.newest(); snap != nil {
		return snap.meta.Index, snap.meta.Term
	}
	return 0, 0
}

// heldFrom returns the first entry that the log must keep for followers that receive a snapshot; 0
// if there are none. A follower continues after the snapshot's last entry once it has received and
// restored all of it. For a state of many gigabytes that may take longer than the log is kept
// otherwise. The follower would then need another snapshot, and so on for ever. The retention time
// begins again once the follower has read the snapshot to its end.
func (s *snapshotStore) heldFrom() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var from uint64
	now := s.clock.Now()
	for snap, until := range s.held {
		switch {
		case !until.IsZero() && now.After(until):
			delete(s.held, snap)
		case from == 0 || snap.meta.Index < from:
			from = snap.meta.Index
		}
	}
	return from
}

// List implements raft.SnapshotStore.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*raft.SnapshotMeta
	for _, snap := range s.snaps {
		meta := snap.meta
		out = append(out, &meta)
	}
	return out, nil
}

// Open implements raft.SnapshotStore. The snapshot is kept until the reader is closed.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.snaps, func(snap *snapshot) bool { return snap.meta.ID == id })
	if i < 0 {
		return nil, nil, fmt.Errorf("snapshot %s is gone", id)
	}
	snap := s.snaps[i]
	source, err := s.source(snap)
	if err != nil {
		return nil, nil, err
	}
	snap.readers++
	s.held[snap] = time.Time{}
	s.metrics.Snapshots.WithLabelValues("opened").Inc()
	meta := snap.meta
	return &meta, &snapshotReader{ReadCloser: source, store: s, snap: snap}, nil
}

// source returns the stream of snap.
func (s *snapshotStore) source(snap *snapshot) (io.ReadCloser, error) {
	dir := filepath.Join(s.dir, snap.meta.ID, snapCheckpoint)
	files, err := checkpointFiles(s.fs, dir)
	if err != nil {
		return nil, err
	}
	if n := streamSize(files); n != snap.meta.Size {
		return nil, corruptf("snapshot %s: a stream of %d bytes, expected %d", snap.meta.ID, n, snap.meta.Size)
	}
	// The writer ends with the reader: its next write fails once the reader is closed.
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeStream(w, s.fs, dir, s.cluster, snap.applied, files)) }()
	return r, nil
}

// layOut makes the directory to with the files of a snapshot. All is durable except the directory's
// name.
func (s *snapshotStore) layOut(snap *snapshot, to string) error {
	return linkCheckpoint(s.fs, filepath.Join(s.dir, snap.meta.ID, snapCheckpoint), to)
}

type snapshotReader struct {
	io.ReadCloser
	store *snapshotStore
	snap  *snapshot
	once  sync.Once
}

func (r *snapshotReader) Close() error {
	err := r.ReadCloser.Close()
	r.once.Do(func() {
		r.store.mu.Lock()
		defer r.store.mu.Unlock()
		if r.snap.readers--; r.snap.readers == 0 {
			r.store.held[r.snap] = r.store.clock.Now().Add(r.store.hold)
		}
		if r.snap.retired && r.snap.readers == 0 {
			err = errors.Join(err, r.store.remove(r.snap))
		}
	})
	return err
}

// remove deletes the files of a snapshot. It first removes the name durably, so that a power cut
// cannot leave half a snapshot.
func (s *snapshotStore) remove(snap *snapshot) error {
	tmp := filepath.Join(s.dir, fmt.Sprintf("%s%020d", snapTmpPrefix, snap.number))
	if err := s.fs.Rename(filepath.Join(s.dir, snap.meta.ID), tmp); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return err
	}
	return s.fs.RemoveAll(tmp)
}

// retire removes all snapshots except the newest. The caller holds mu, or has exclusive use.
func (s *snapshotStore) retire() error {
	var err error
	for _, old := range s.snaps[min(1, len(s.snaps)):] {
		old.retired = true
		if old.readers == 0 {
			err = errors.Join(err, s.remove(old))
		}
	}
	s.snaps = s.snaps[:min(1, len(s.snaps))]
	return err
}

// Create implements raft.SnapshotStore.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	tmp := filepath.Join(s.dir, fmt.Sprintf("%s%020d", snapTmpPrefix, s.next))
	if err := s.fs.MkdirAll(tmp); err != nil {
		return nil, err
	}
	return &checkpointSink{store: s, tmp: tmp, began: s.clock.Now(), snap: &snapshot{
		number: s.next, form: snapTaken,
		meta: raft.SnapshotMeta{
			Version: version, ID: fmt.Sprintf("%s%020d", snapPrefix, s.next), Index: index, Term: term,
			Configuration: configuration.Clone(), ConfigurationIndex: configurationIndex,
		},
	}}, nil
}
