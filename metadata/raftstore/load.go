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
	// loadTerm is the term of the last entry of a state that was loaded.
	loadTerm = 1
	// loadMemTable is the size of a table in memory during a load: larger ones make
	// fewer, and what is appended to the state's tables in turn overlaps less.
	loadMemTable = 128 << 20
	// loadCache is what a load caches beyond cfg.CacheBytes, which tables in memory
	// would take all of.
	loadCache = 1 << 30
	// loadRecords is the cache of records: one that fits the processor's caches.
	loadRecords = 4 << 20
	// settlePoll is how often a load looks whether compactions have ended.
	settlePoll = 100 * time.Millisecond
)

// Loader makes the state of a node that is being formed.
type Loader struct {
	state *stateDB
	index uint64
}

// Apply has fn write what one entry of the log would, as its FSM does; an error
// of fn ends the load.
func (l *Loader) Apply(fn func(kv kvtx.KV, index uint64) error) error {
	kv := l.state.newApplyKV()
	err := fn(kv, l.index+1)
	if err == nil {
		l.index++
		err = l.state.commit(kv, l.index)
	}
	return err
}

// Load forms cfg.Dir, which must be empty or missing, as a node of the group of
// cfg.Peers, as Bootstrap does, with a state that fill makes: what fill applies
// are the first entries of the log, which no log was written for. It is for
// states of a size that no log would bring in time. Nothing is durable before
// Load has returned; cut short, it may be run again, after an error by another
// process. The other nodes of the group
// are made of this one by Seed, and by nothing else.
func Load(cfg Config, deps Deps, fill func(*Loader) error) error {
	const op = "raftstore.Load"
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	if err := refuseFormed(&cfg, &deps); err != nil {
		return wrap(op, cfg.Dir, err)
	}
	// pebble ends the goroutine in which it cannot go on, which may be one of its own:
	// who waits for that one then remains.
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

// refuseFormed fails where cfg.Dir is a node's already.
func refuseFormed(cfg *Config, deps *Deps) error {
	id, err := readIdentity(deps.FS, cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && id.formed {
		err = &moraine.Error{Op: "raftstore", Ref: cfg.Dir, Kind: moraine.Exists, Err: errors.New("a metadata server's directory is there: name an empty one")}
	}
	return err
}

func load(cfg *Config, deps *Deps, broken *fatal, fill func(*Loader) error) error {
	// The tables in memory count as parts of the cache. What a load asks for is what it
	// has just made, so that few records do.
	cfg.CacheBytes += loadCache
	cfg.RecordCacheBytes = loadRecords
	st := newState(cfg, deps, broken)
	st.tune = func(o *pebble.Options) {
		// A load that is cut short is begun anew: the log of what is not flushed yet
		// would serve nobody.
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

// settle makes the state durable and waits until no compaction is due: the state
// of a node that has run for long has none.
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

// takeFirst takes the snapshot that stands for the log of a loaded state.
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

// beginTerm makes a log that is empty, of a node that has come to a term.
func beginTerm(cfg *Config, deps *Deps, term uint64) error {
	log, err := openLog(cfg, deps, nil)
	if err != nil {
		return err
	}
	return errors.Join(log.SetUint64([]byte("CurrentTerm"), term), log.Close())
}

// voters is the configuration in which all peers vote.
func (c *Config) voters() raft.Configuration {
	var conf raft.Configuration
	for _, p := range c.Peers {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)})
	}
	return conf
}

// Seed forms cfg.Dir, which must be empty or missing, as a node of the group of
// cfg.Peers with the state of the node in from, which Load has made and which was
// never run: its files are hard links, so that it takes no time and no space. All
// nodes of a group are seeded from the same one, each with the same Peers; the one
// in from stays as it is. Cut short, it may be run again.
func Seed(cfg Config, deps Deps, from string) error {
	const op = "raftstore.Seed"
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	if err := refuseFormed(&cfg, &deps); err != nil {
		return wrap(op, cfg.Dir, err)
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
		return &moraine.Error{Op: "raftstore", Ref: from, Kind: moraine.InvalidArgument, Err: errors.New("it is not a state as it was loaded")}
	}
	files := filepath.Join(source.dir, snap.meta.ID, snapCheckpoint)
	return form(cfg, deps, identity{admitted: true, entered: true}, func(cfg *Config, deps *Deps) error { return plant(cfg, deps, snap, files) })
}

// plant links a loaded state into a new node, as its state and as the snapshot
// that its log begins after.
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
// are never changed and are linked; the others, which pebble may append to, are
// copied: a manifest comes to 128 MiB, pebble's own log to what was applied while the
// state was flushed.
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

// copySynced copies the first size bytes of a file, and makes them durable, not their
// name. What it finds under that name it writes over.
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
