package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

const (
	// loadTerm is the term of the last entry of a loaded state.
	loadTerm = 1
	// loadMemTable is the size of a table in memory during a load. Larger tables mean fewer of them
	// and less overlap when data is appended to the state's tables in turn.
	loadMemTable = 128 << 20
	// loadCache is the additional cache of a load beyond cfg.CacheBytes, which the tables in memory
	// would use up.
	loadCache = 1 << 30
	// loadRecords is the size of the record cache, chosen to fit the processor's caches.
	loadRecords = 4 << 20
	// settlePoll is how often a load checks whether compactions have ended.
	settlePoll = 100 * time.Millisecond
)

// Loader makes the state of a new node.
type Loader struct {
	state *stateDB
	index uint64
}

// Apply lets fn write what the FSM would write for one log entry. An error of fn ends the load.
func (l *Loader) Apply(fn func(kv kvtx.KV, index uint64) error) error {
	kv := l.state.newApplyKV()
	err := fn(kv, l.index+1)
	if err == nil {
		l.index++
		err = l.state.commit(kv, l.index)
	}
	return err
}

// Load makes cfg.Dir, which must be empty or missing, the directory of a node of the group of
// cfg.Peers. It does so like Bootstrap, but with a state that fill makes. What fill applies stands for the first log entries, for
// which no log is written. It is for states so large that applying a log would take too long.
// Nothing is durable before Load returns. An interrupted Load may be repeated; after an error only
// by another process. The other nodes of the group must be made from this one by Seed.
func Load(cfg Config, deps Deps, fill func(*Loader) error) error {
	const op = "raftstore.Load"
	if err := mayForm(op, &cfg, &deps); err != nil {
		return err
	}
	// pebble ends the goroutine in which it cannot continue, which may be its own. Goroutines that
	// wait for it then remain.
	broken := newFatal()
	ended := make(chan error, 1)
	go func() {
		ended <- form(&cfg, &deps, identity{admitted: true, entered: true}, func(cfg *Config, deps *Deps) error { return load(cfg, deps, broken, fill) })
	}()
	select {
	case err := <-ended:
		return wrap(op, cfg.Dir, err)
	case <-broken.ended:
	}
	select {
	case <-ended:
	case <-deps.Clock.After(shutdownGrace):
	}
	return wrap(op, cfg.Dir, broken.err())
}

// refuseFormed fails if cfg.Dir already belongs to a node.
func refuseFormed(cfg *Config, deps *Deps) error {
	id, err := readIdentity(deps.FS, cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && id.formed {
		err = &moraine.Error{Op: "raftstore", Ref: cfg.Dir, Kind: moraine.Exists, Err: errors.New("the directory already belongs to a metadata server: name an empty one")}
	}
	return err
}

func load(cfg *Config, deps *Deps, broken *fatal, fill func(*Loader) error) error {
	// The tables in memory count as part of the cache. A load reads what it has just written, so
	// that a few records are enough.
	cfg.CacheBytes += loadCache
	cfg.RecordCacheBytes = loadRecords
	st := newState(cfg, deps, broken)
	st.tune = func(o *pebble.Options) {
		// An interrupted load starts again, so that a log of unflushed data would be useless.
		o.DisableWAL = true
		o.MemTableSize = loadMemTable
		o.L0StopWritesThreshold = 64
		o.CompactionConcurrencyRange = func() (int, int) { return 1, 2 }
	}
	if err := st.open(); err != nil {
		st.cache.Unref()
		return err
	}
	l := &Loader{state: st}
	err := fill(l)
	if err == nil && l.index == 0 {
		err = errors.New("nothing was applied")
	}
	if err == nil {
		err = st.settle(deps)
	}
	if err == nil {
		err = takeFirst(cfg, deps, st, l.index)
	}
	if broken.broken.Load() {
		return err
	}
	return errors.Join(err, st.close())
}

// settle makes the state durable and waits until no compaction is due, as in the state of a node
// that has run for long.
func (s *stateDB) settle(deps *Deps) error {
	if err := s.spill(); err != nil {
		return err
	}
	if err := s.db.Flush(); err != nil {
		return err
	}
	for quiet := 0; quiet < 3; {
		if m := s.db.Metrics(); m.Compact.NumInProgress == 0 && m.Flush.NumInProgress == 0 {
			quiet++
		} else {
			quiet = 0
		}
		<-deps.Clock.After(settlePoll)
	}
	return nil
}

// takeFirst takes the snapshot that replaces the log of a loaded state.
func takeFirst(cfg *Config, deps *Deps, st *stateDB, index uint64) error {
	snapshots, err := openSnapshots(cfg, deps, st)
	if err != nil {
		return err
	}
	sink, err := snapshots.Create(raft.SnapshotVersionMax, index, loadTerm, cfg.voters(), index, nil)
	if err != nil {
		return err
	}
	if err := sink.(*checkpointSink).capture(); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	return beginTerm(cfg, deps, loadTerm)
}

// beginTerm makes an empty log for a node that has reached a term.
func beginTerm(cfg *Config, deps *Deps, term uint64) error {
	log, err := openLog(cfg, deps, nil)
	if err != nil {
		return err
	}
	return errors.Join(log.SetUint64([]byte("CurrentTerm"), term), log.Close())
}

// voters returns the configuration in which all peers vote.
func (c *Config) voters() raft.Configuration {
	var conf raft.Configuration
	for _, p := range c.Peers {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)})
	}
	return conf
}

// Seed forms cfg.Dir, which must be empty or missing, as a node of the group of cfg.Peers with the
// state of the node in from. Load must have made that node, and it must never have run. The files
// are hard links, so that Seed takes no time or space. All nodes of a group are seeded from the
// same one with the same Peers; the one in from does not change. An interrupted Seed may be
// repeated.
func Seed(cfg Config, deps Deps, from string) error {
	const op = "raftstore.Seed"
	if err := mayForm(op, &cfg, &deps); err != nil {
		return err
	}
	return wrap(op, cfg.Dir, seed(&cfg, &deps, from))
}

func seed(cfg *Config, deps *Deps, from string) error {
	id, err := readIdentity(deps.FS, from)
	if err != nil {
		return err
	}
	if id.cluster != cfg.Cluster {
		return &moraine.Error{Op: "raftstore", Ref: from, Kind: moraine.WrongCluster, Err: fmt.Errorf("it belongs to cluster %s", id.cluster)}
	}
	source, err := openSnapshots(&Config{Dir: from, Cluster: cfg.Cluster}, deps, nil)
	if err != nil {
		return err
	}
	snap := source.newest()
	if snap == nil || snap.form != snapTaken || snap.meta.Term != loadTerm || snap.applied != snap.meta.Index {
		return &moraine.Error{Op: "raftstore", Ref: from, Kind: moraine.InvalidArgument, Err: errors.New("the directory does not contain a loaded state")}
	}
	files := filepath.Join(source.dir, snap.meta.ID, snapCheckpoint)
	return form(cfg, deps, identity{admitted: true, entered: true}, func(cfg *Config, deps *Deps) error { return plant(cfg, deps, snap, files) })
}

// plant links a loaded state into a new node, as its state and as the snapshot after which its log
// begins.
func plant(cfg *Config, deps *Deps, snap *snapshot, files string) error {
	st := newState(cfg, deps, newFatal())
	if err := linkCheckpoint(deps.FS, files, st.path(1)); err != nil {
		return errors.Join(err, st.close())
	}
	if err := deps.FS.SyncDir(st.dir); err != nil {
		return errors.Join(err, st.close())
	}
	if err := errors.Join(replaceFile(deps.FS, st.dir, currentFile, encodeCurrent(1)), st.close()); err != nil {
		return err
	}
	snapshots, err := openSnapshots(cfg, deps, nil)
	if err != nil {
		return err
	}
	sink, err := snapshots.Create(raft.SnapshotVersionMax, snap.meta.Index, snap.meta.Term, cfg.voters(), snap.meta.Index, nil)
	if err != nil {
		return err
	}
	own := sink.(*checkpointSink)
	own.snap.applied, own.snap.meta.Size = snap.applied, snap.meta.Size
	if err := linkCheckpoint(deps.FS, files, filepath.Join(own.tmp, snapCheckpoint)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	return beginTerm(cfg, deps, snap.meta.Term)
}

// linkCheckpoint makes the directory to with the files of a checkpoint. Tables
// never change and are linked. Other files, to which pebble may append, are
// copied. A manifest has up to 128 MiB, and pebble's own log has what was
// applied during the flush.
func linkCheckpoint(fsys vfs.FS, from, to string) error {
	files, err := checkpointFiles(fsys, from)
	if err != nil {
		return err
	}
	if err := fsys.MkdirAll(to); err != nil {
		return err
	}
	for _, f := range files {
		source, target := filepath.Join(from, f.name), filepath.Join(to, f.name)
		if strings.HasSuffix(f.name, ".sst") {
			err = fsys.Link(source, target)
		} else {
			err = copySynced(fsys, source, target, f.size)
		}
		if err != nil {
			return err
		}
	}
	return fsys.SyncDir(to)
}

// copySynced copies the first size bytes of a file and makes them durable, but not their name. It
// overwrites an existing file.
func copySynced(fsys vfs.FS, from, to string, size int64) (err error) {
	source, err := fsys.Open(from, vfs.Read)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := fsys.Open(to, vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	buf := make([]byte, min(size, streamFrame))
	for off := int64(0); off < size; {
		p := buf[:min(streamFrame, size-off)]
		if n, err := source.ReadAt(p, off); n < len(p) {
			return fmt.Errorf("%s ends at %d of %d: %w", from, off+int64(n), size, err)
		}
		if _, err := target.WriteAt(p, off); err != nil {
			return err
		}
		off += int64(len(p))
	}
	return target.Sync()
}

// mayForm completes the settings, and fails unless they are valid and the directory is free.
func mayForm(op string, cfg *Config, deps *Deps) error {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	return wrap(op, cfg.Dir, refuseFormed(cfg, deps))
}
