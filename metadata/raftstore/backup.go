package raftstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// A backup is a file with a snapshot of the state, and what is needed to begin a
// group with it: docs/formats/snapshot.md describes it.
const (
	backupMagic   = "MRNBKUP1"
	backupVersion = 1
	backupHeader  = envelopeHeader + backupBody + 4
	backupBody    = 16 + 8 + 8 + 8 + 8 + 8
	backupEnd     = "MRNBKEND"
	backupTrailer = 8 + 4
)

// BackupInfo says what a backup is of.
type BackupInfo struct {
	Cluster     moraine.UUID
	Incarnation uint64 // of the metadata's history
	// Applied is the index of the last entry in it, at least, Term one that is not
	// below that entry's.
	Applied, Term uint64
	Taken         time.Time
	// Bytes is the length of the stream.
	Bytes int64
}

// Snapshot takes a snapshot of the state as it is now and opens its stream,
// which the caller closes. It fails where the node does not run.
func (s *Store) Snapshot(ctx context.Context) (BackupInfo, io.ReadCloser, error) {
	const op = "raftstore.Snapshot"
	r := s.started.Load()
	if r == nil {
		return BackupInfo{}, nil, s.stopped(op)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Snapshot().Error() }()
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return BackupInfo{}, nil, wrap(op, s.cfg.Node, err)
		}
	case <-ctx.Done():
		return BackupInfo{}, nil, contextError(op, ctx)
	}
	snap := s.snapshots.newest()
	if snap == nil {
		return BackupInfo{}, nil, &moraine.Error{Op: op, Kind: moraine.Unavailable, Err: errors.New("there is nothing to snapshot yet")}
	}
	meta, stream, err := s.snapshots.Open(snap.meta.ID)
	if err != nil {
		return BackupInfo{}, nil, wrap(op, s.cfg.Node, err)
	}
	return BackupInfo{Cluster: s.cfg.Cluster, Applied: snap.applied, Term: r.CurrentTerm(), Bytes: meta.Size}, stream, nil
}

func (i BackupInfo) encode() []byte {
	le := binary.LittleEndian
	body := append([]byte(nil), i.Cluster[:]...)
	for _, v := range []uint64{i.Incarnation, i.Applied, i.Term, uint64(i.Taken.UnixNano()), uint64(i.Bytes)} {
		body = le.AppendUint64(body, v)
	}
	return seal(backupMagic, backupVersion, body)
}

// BackupWriter writes a backup file: the header, then what Write is given, which
// must be info.Bytes of a stream, then, with Close, the end.
type BackupWriter struct {
	w    io.Writer
	sum  hash.Hash32
	left int64
}

// NewBackupWriter writes the header.
func NewBackupWriter(w io.Writer, info BackupInfo) (*BackupWriter, error) {
	b := &BackupWriter{w: w, sum: crc32.New(castagnoli), left: info.Bytes}
	return b, b.write(info.encode())
}

func (b *BackupWriter) write(p []byte) error {
	b.sum.Write(p) // never fails
	_, err := b.w.Write(p)
	return err
}

// Write implements io.Writer.
func (b *BackupWriter) Write(p []byte) (int, error) {
	b.left -= int64(len(p))
	if b.left < 0 {
		return 0, corruptf("the snapshot is longer than it said")
	}
	return len(p), b.write(p)
}

// Close writes the end; it closes nothing else.
func (b *BackupWriter) Close() error {
	if b.left != 0 {
		return corruptf("the snapshot ended %d bytes early", b.left)
	}
	if err := b.write([]byte(backupEnd)); err != nil {
		return err
	}
	_, err := b.w.Write(binary.LittleEndian.AppendUint32(nil, b.sum.Sum32()))
	return err
}

// ReadBackup reads a backup's header and checks all of its size bytes: Corrupt
// where one is missing or wrong.
func ReadBackup(r io.ReaderAt, size int64) (BackupInfo, error) {
	info, err := backupInfo(r, size)
	if err != nil {
		return info, wrap("raftstore.ReadBackup", "", err)
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, size-4)); err != nil {
		return info, wrap("raftstore.ReadBackup", "", err)
	}
	var end [backupTrailer]byte
	if _, err := r.ReadAt(end[:], size-backupTrailer); err != nil && err != io.EOF {
		return info, wrap("raftstore.ReadBackup", "", err)
	}
	if string(end[:8]) != backupEnd || binary.LittleEndian.Uint32(end[8:]) != sum.Sum32() {
		return info, wrap("raftstore.ReadBackup", "", corruptf("the backup's checksum is wrong: it is damaged"))
	}
	stream, err := newStreamReader(backupStream(r, info), info.Cluster)
	if err == nil {
		err = stream.verify()
	}
	return info, wrap("raftstore.ReadBackup", "", err)
}

func backupStream(r io.ReaderAt, info BackupInfo) *io.SectionReader {
	return io.NewSectionReader(r, backupHeader, info.Bytes)
}

func backupInfo(r io.ReaderAt, size int64) (BackupInfo, error) {
	if size < backupHeader+backupTrailer {
		return BackupInfo{}, corruptf("%d bytes are no backup", size)
	}
	head := make([]byte, backupHeader)
	if _, err := r.ReadAt(head, 0); err != nil {
		return BackupInfo{}, err
	}
	body, _, err := unseal(backupMagic, backupVersion, head)
	if err != nil {
		return BackupInfo{}, err
	}
	d := reader{p: body}
	var info BackupInfo
	copy(info.Cluster[:], d.take(16))
	info.Incarnation, info.Applied, info.Term = d.u64(), d.u64(), d.u64()
	info.Taken, info.Bytes = time.Unix(0, int64(d.u64())), int64(d.u64())
	if !d.done() {
		return info, corruptf("the backup's header does not parse")
	}
	if want := backupHeader + info.Bytes + backupTrailer; want != size {
		return info, corruptf("the backup has %d bytes, and should have %d: it was cut short, or is damaged", size, want)
	}
	return info, nil
}

// Restore forms cfg.Dir, which must be empty or missing, as a group of one, this
// node, with the state of a backup, and first, the first entry of its log after
// that. The backup is checked before anything is written. Cut short, it may be
// run again. What it returns has the exact index of the last entry in the state.
// deps.FSM and deps.Stream are not used.
func Restore(cfg Config, deps Deps, backup io.ReaderAt, size int64, first []byte) (BackupInfo, error) {
	const op = "raftstore.Restore"
	cfg.setDefaults()
	deps.setDefaults()
	info, err := ReadBackup(backup, size)
	if err != nil {
		return info, err
	}
	cfg.Cluster = info.Cluster
	if err := cfg.validate(); err != nil {
		return info, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	id, err := readIdentity(deps.FS, cfg.Dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return info, wrap(op, cfg.Dir, err)
	case err == nil && id.formed:
		return info, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.Exists,
			Err: errors.New("a metadata server's directory is there: name an empty one, so that nothing is lost by mistake")}
	}
	err = form(&cfg, &deps, true, func(cfg *Config, deps *Deps) error { return fillFrom(cfg, deps, &info, backup, first) })
	return info, wrap(op, cfg.Dir, err)
}

func (c *Config) alone() raft.Configuration {
	self, _ := c.peer(c.Node)
	return raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(c.Node), Address: raft.ServerAddress(self.Address)}}}
}

// fillFrom writes the snapshot and the log of a restored node. It sets
// info.Applied to what the state has reached.
func fillFrom(cfg *Config, deps *Deps, info *BackupInfo, backup io.ReaderAt, first []byte) error {
	store, err := openSnapshots(cfg, deps, nil)
	if err != nil {
		return err
	}
	// The state may hold more entries than the backup says: its taker went on
	// meanwhile. The log must begin after the last of them, or what it brings
	// would be passed over.
	reached, err := streamReach(cfg, deps, backupStream(backup, *info))
	if err != nil {
		return err
	}
	info.Applied = max(info.Applied, reached)
	sink, err := store.Create(raft.SnapshotVersionMax, info.Applied, info.Term, cfg.alone(), info.Applied, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, backupStream(backup, *info)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	log, err := openLog(cfg, deps, nil)
	if err != nil {
		return err
	}
	err = storeInNextTerm(log, info.Term, []*raft.Log{
		{Index: info.Applied + 1, Type: raft.LogCommand, Data: first, AppendedAt: deps.Clock.Now()}})
	return errors.Join(err, log.Close())
}

// storeInNextTerm appends entries under the term after term: in term itself
// servers that were given up may have other entries of the same indexes. The
// node's own term comes first: no log may hold an entry of a term that the node
// could campaign in. A vote of a term before counts in no later one.
func storeInNextTerm(log *raftLog, term uint64, entries []*raft.Log) error {
	for _, e := range entries {
		e.Term = term + 1
	}
	if err := log.SetUint64([]byte("CurrentTerm"), term+1); err != nil {
		return err
	}
	return log.StoreLogs(entries)
}

// streamReach returns the index of the last entry in the state of a stream. It
// lays the state out where the first database of the node will be, and removes
// it again: cfg.Dir must have no state yet.
func streamReach(cfg *Config, deps *Deps, stream io.Reader) (index uint64, err error) {
	r, err := newStreamReader(stream, cfg.Cluster)
	if err != nil {
		return 0, err
	}
	s := &stateDB{fs: deps.FS, dir: filepath.Join(cfg.Dir, stateDir)}
	dir := s.path(1)
	if err := deps.FS.RemoveAll(dir); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, deps.FS.RemoveAll(dir)) }()
	if err := r.extract(deps.FS, dir); err != nil {
		return 0, err
	}
	db, err := openReadOnly(deps.FS, dir)
	if err != nil {
		return 0, err
	}
	index, err = applied(db)
	return index, errors.Join(err, db.Close())
}

// Survey is what a node's directory holds, as it lies there.
type Survey struct {
	Identity
	// Members are those of the newest configuration, Voters how many of them vote.
	Members []string
	Voters  int
	// LastIndex and LastTerm are of the newest entry, Appended when its leader
	// appended it (zero where only a snapshot tells).
	LastIndex, LastTerm uint64
	Appended            time.Time
	// Snapshot is the last entry in the newest snapshot; 0 where there is none.
	Snapshot uint64
}

// ForceAlone makes the node of cfg.Dir, which must not run, a group of its own:
// it appends a configuration of this node alone to the log, and entry. What the
// node has in its log counts from then on, committed or not; what others had is
// given up. With confirm false nothing is changed. Repeated, it appends again.
func ForceAlone(cfg Config, deps Deps, entry []byte, confirm bool) (Survey, error) {
	const op = "raftstore.ForceAlone"
	cfg.setDefaults()
	deps.setDefaults()
	id, err := ReadIdentity(deps.FS, cfg.Dir)
	if err != nil {
		return Survey{}, err
	}
	if id.Node != cfg.Node {
		return Survey{}, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: fmt.Errorf("it is the directory of %s, not of %s", id.Node, cfg.Node)}
	}
	cfg.Cluster = id.Cluster
	if err := cfg.validate(); err != nil {
		return Survey{}, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	lock, err := deps.FS.Lock(filepath.Join(cfg.Dir, lockFile))
	if err != nil {
		return Survey{}, lockError(cfg.Dir, err)
	}
	sv, err := forceAlone(&cfg, &deps, id, entry, confirm)
	return sv, wrap(op, cfg.Dir, errors.Join(err, lock.Close()))
}

func forceAlone(cfg *Config, deps *Deps, id Identity, entry []byte, confirm bool) (sv Survey, err error) {
	log, err := openLog(cfg, deps, nil)
	if err != nil {
		return sv, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if sv, err = survey(cfg, deps, log); err != nil || !confirm {
		sv.Identity = id
		return sv, err
	}
	sv.Identity = id
	term, err := log.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return sv, err
	}
	term = max(term, sv.LastTerm)
	now := deps.Clock.Now()
	return sv, storeInNextTerm(log, term, []*raft.Log{
		{Index: sv.LastIndex + 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(cfg.alone()), AppendedAt: now},
		{Index: sv.LastIndex + 2, Type: raft.LogCommand, Data: entry, AppendedAt: now},
	})
}

// survey reads what a log and the snapshots beside it hold.
func survey(cfg *Config, deps *Deps, log *raftLog) (Survey, error) {
	var sv Survey
	snapshots, err := openSnapshots(cfg, deps, nil)
	if err != nil {
		return sv, err
	}
	var conf raft.Configuration
	if snap := snapshots.newest(); snap != nil {
		sv.LastIndex, sv.LastTerm, sv.Snapshot, conf = snap.meta.Index, snap.meta.Term, snap.meta.Index, snap.meta.Configuration
	}
	first, err := log.FirstIndex()
	if err != nil {
		return sv, err
	}
	last, err := log.LastIndex()
	if err != nil {
		return sv, err
	}
	for i := first; i > 0 && i <= last; i++ {
		var entry raft.Log
		if err := log.GetLog(i, &entry); err != nil {
			return sv, fmt.Errorf("entry %d: %w", i, err)
		}
		if entry.Type == raft.LogConfiguration {
			conf = raft.DecodeConfiguration(entry.Data)
		}
		if i >= sv.LastIndex {
			sv.LastIndex, sv.LastTerm, sv.Appended = entry.Index, entry.Term, entry.AppendedAt
		}
	}
	for _, s := range conf.Servers {
		sv.Members = append(sv.Members, string(s.ID))
		if s.Suffrage == raft.Voter {
			sv.Voters++
		}
	}
	slices.Sort(sv.Members)
	if sv.LastIndex == 0 {
		return sv, &moraine.Error{Op: "raftstore", Ref: cfg.Dir, Kind: moraine.NotFound, Err: errors.New("the directory holds no entry: there is nothing to go on with")}
	}
	return sv, nil
}
