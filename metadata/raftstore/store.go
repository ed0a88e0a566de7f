// Package raftstore keeps the metadata of a cluster on several nodes: a log that hashicorp/raft
// replicates and raft-wal writes, and the state that the log produces, in a pebble database. It
// does not know what the entries mean: an FSM applies them.
//
// It does not group commands into entries, does not retry, and does not forward: a node that does
// not lead names the leader.
//
// The path of a proposal: Propose passes the entry to raft, which appends it to the log here
// (log.go) and on the other nodes. Once a majority has synced it, raft passes it, with others, to
// machine.ApplyBatch (fsm.go). That lets the FSM write into one batch, adds the index of the last
// entry, commits the batch without a sync, and returns the FSM's result to the proposer. The log
// makes it durable: after a crash the node applies entries again that pebble lost, and skips those
// that it has. From time to time raft requests a snapshot (snapshot.go): the state is flushed and
// linked into a directory, and the log before it may be deleted.
//
// The path of a read: ReadBarrier (readbarrier.go) confirms with a majority that this node still
// leads, and waits until the state has reached the commit index. View then reads a consistent
// snapshot.
//
// docs/formats/metastore.md and docs/formats/snapshot.md describe a node's files. All file access
// goes through vfs.FS.
//
// A node does not survive errors of its disk. A failed write to the log or the state ends Run with
// an error. So does an append that takes longer than Config.LogStall, if there are other voters.
// The process must then end. A node without other voters waits for such an append, and logs it.
package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// Store is one node. Its methods may be called concurrently. Before Run is ready they fail with
// Unavailable, or as on a node that does not lead.
type Store struct {
	cfg  Config
	deps Deps

	ready    chan struct{} // closed when the fields below are set
	ending   chan struct{} // closed when Run begins to end
	fatal    *fatal
	notify   chan bool // from raft
	changes  chan bool
	inFlight chan struct{}
	entries  limit.Resource // resource that inFlight uses

	log       *raftLog
	state     *stateDB
	snapshots *snapshotStore
	transport *transport
	machine   *machine
	raft      *raft.Raft
	started   atomic.Pointer[raft.Raft] // raft, for callers that may be early
	reads     *readQueue
	lead      atomic.Pointer[leadership]
	lowSpace  atomic.Bool
	stalled   atomic.Bool   // an append hangs, and the node waits for it
	stallSaid time.Duration // how long it had lasted when last logged; used by watchDisk
	silent    atomic.Bool   // this node, a follower, has long received nothing from its leader

	incarnation atomic.Pointer[moraine.MarkedIncarnation] // nil before Run has opened the directory
	// hadEntries: the log had entries when the node started.
	hadEntries bool
	givingUp   sync.Mutex // held during a change of IDENTITY
	refusals   sync.Mutex // guards the following fields
	refused    map[greeting]time.Time
}

// errClosed is the error for a state that is not open.
var errClosed = &moraine.Error{Op: "raftstore", Kind: moraine.Unavailable, Err: errors.New("the node is stopping")}

// New checks cfg and deps and fills in defaults. It opens and starts nothing.
func New(cfg Config, deps Deps) (*Store, error) {
	cfg.setDefaults()
	deps.setDefaults()
	err := cfg.validate()
	if err == nil && (deps.FSM == nil || deps.Stream == nil) {
		err = errors.New("an FSM and a Stream are needed")
	}
	if err != nil {
		return nil, &moraine.Error{Op: "raftstore.New", Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	return &Store{
		cfg: cfg, deps: deps,
		ready:    make(chan struct{}),
		ending:   make(chan struct{}),
		fatal:    newFatal(),
		notify:   make(chan bool, 16),
		changes:  make(chan bool),
		inFlight: make(chan struct{}, cfg.MaxInFlight),
		entries: limit.Resource{Name: "log entries in flight", Advice: "the log's disk, or the other servers, are slow",
			Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)},
		reads: newReadQueue(),
	}, nil
}

// Ready returns a channel that is closed when the node takes part in its group.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// Run opens the node's directory, which Bootstrap made, and takes part in the group until ctx ends;
// a leader first transfers its leadership. It returns nil after ctx and every goroutine have ended.
// It returns an error if the directory cannot be used (WrongCluster, NewerFormat, Corrupt,
// NotFound), or if the node cannot continue. Goroutines that wait for a hung disk may then remain,
// and the process should end. Run is called once. It closes Deps.Stream.
func (s *Store) Run(ctx context.Context) error {
	err := s.run(ctx)
	if err == nil {
		return nil
	}
	s.fatal.set(err) // tell those that wait for this node
	return wrap("raftstore.Run", s.cfg.Dir, err)
}

func (s *Store) run(ctx context.Context) (err error) {
	defer s.deps.Stream.Close() // raft has closed it if raft was started
	lock, err := s.deps.FS.Lock(filepath.Join(s.cfg.Dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return &moraine.Error{Op: "raftstore.Open", Ref: s.cfg.Dir, Kind: moraine.NotFound,
			Err: errors.New("no such node: bootstrap it first")}
	}
	if err != nil {
		return lockError(s.cfg.Dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := s.start(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	for _, work := range []func(context.Context){s.watchLeadership, s.watchLeader, s.runReads, s.watchDisk, s.keepSmall} {
		wg.Go(func() { work(inner) })
	}
	close(s.ready)
	select {
	case <-ctx.Done():
		close(s.ending)
		s.handOver()
		s.drain()
	case <-s.fatal.ended:
	}
	return s.shutdown(cancel, &wg)
}

// start opens everything, or returns the error that ended the node meanwhile. If pebble finds an
// error in the background while it opens, it never returns, because it waits for the goroutine that
// fatal.die ended. If the log fails, die ends the goroutine that opens. Opening therefore has a
// goroutine of its own, which may remain as shutdown says. After an error everything that can be
// closed is closed.
func (s *Store) start() error {
	opened := make(chan error, 1)
	go func() { opened <- s.open() }()
	var err error
	select {
	case err = <-opened:
	case <-s.fatal.ended:
		select {
		case err = <-opened:
		case <-s.deps.Clock.After(shutdownGrace):
			return s.fatal.err()
		}
	}
	if err == nil || s.fatal.broken.Load() {
		return err
	}
	return errors.Join(err, s.close())
}

// open opens everything and starts raft. After an error close undoes it.
func (s *Store) open() error {
	if err := nameDirectory(&s.cfg, &s.deps); err != nil {
		return err
	}
	id, err := readIdentity(s.deps.FS, s.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !id.formed) {
		return &moraine.Error{Op: "raftstore.Open", Ref: s.cfg.Dir, Kind: moraine.NotFound,
			Err: errors.New("the node was not bootstrapped, or not to the end: bootstrap it")}
	}
	if err == nil {
		err = checkIdentity(id, &s.cfg)
	}
	if err != nil {
		return err
	}
	if id.outlivedBy > id.incarnation.Number {
		return outlived(s.cfg.Node, id.incarnation.Number, id.outlivedBy, "what it noted before it ended")
	}
	s.checkSpace() // do this first: on a full disk the ballast lets the rest be written
	if err := s.probeDisk(); err != nil {
		return fmt.Errorf("probe the disk: %w", err)
	}
	if s.log, err = openLog(&s.cfg, &s.deps, s.fatal.die); err != nil {
		return err
	}
	if s.state, err = openState(&s.cfg, &s.deps, s.fatal); err != nil {
		return err
	}
	if s.snapshots, err = openSnapshots(&s.cfg, &s.deps, s.state); err != nil {
		return err
	}
	s.log.newest, s.log.low, s.log.heldFrom = s.snapshots.newestEnd, s.LowSpace, s.snapshots.heldFrom
	s.machine = &machine{store: s, fsm: s.deps.FSM, last: &watermark{}}
	if err := s.reconcile(); err != nil {
		return err
	}
	if err := s.learnIncarnation(id); err != nil {
		return err
	}
	s.transport = newTransport(&s.cfg, &s.deps, s.serverAddr, &s.silent, s.leaderAddress, s.greeter())
	rc := raftConfig(&s.cfg, &s.deps)
	rc.NotifyCh = s.notify
	cached, err := raft.NewLogCache(4*s.cfg.MaxAppendEntries, s.log)
	if err != nil {
		return err
	}
	if s.raft, err = raft.NewRaft(rc, s.machine, cached, s.log, s.snapshots, s.transport); err != nil {
		return err
	}
	s.started.Store(s.raft)
	return nil
}

func raftConfig(cfg *Config, deps *Deps) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(cfg.Node)
	rc.HeartbeatTimeout = cfg.HeartbeatTimeout
	rc.ElectionTimeout = cfg.ElectionTimeout
	// raft requires it to be below the lowest timeout that it gets, which is watchLeader's
	rc.LeaderLeaseTimeout = min(cfg.LeaderLease, cfg.HeartbeatTimeout-lookMargin)
	rc.CommitTimeout = cfg.CommitTimeout
	rc.MaxAppendEntries = cfg.MaxAppendEntries
	// Not BatchApplyCh: entries in its buffer are never answered when raft ends. Without it raft
	// groups the entries that wait to be sent, with the same effect.
	rc.BatchApplyCh = false
	rc.SnapshotInterval = cfg.SnapshotInterval
	rc.SnapshotThreshold = cfg.SnapshotEntries
	rc.TrailingLogs = 1 // raftLog.DeleteRange decides what is kept
	rc.NoSnapshotRestoreOnStart = true
	rc.NoLegacyTelemetry = true
	rc.ShutdownOnRemove = false
	rc.Logger = newHCLog(deps.Log.With("part", "raft"))
	return rc
}

// handOver transfers the leadership before this node stops, so that clients wait for a message and
// not for an election.
func (s *Store) handOver() {
	if s.raft.State() != raft.Leader || len(s.voters()) < 2 {
		return
	}
	if err := s.raft.LeadershipTransfer().Error(); err != nil { // ends within an election timeout
		s.deps.Log.Warn("leadership was not handed over", "err", err)
	}
}

// drain waits for the proposals in flight, because a raft that is shut down drops those that it has
// passed to the state. They end with their commit, or with the leadership, which without a majority
// lasts as long as its lease.
func (s *Store) drain() {
	patience := s.deps.Clock.After(2*s.cfg.LeaderLease + time.Second)
	for range cap(s.inFlight) {
		select {
		case s.inFlight <- struct{}{}:
		case <-patience:
			return
		case <-s.fatal.ended:
			return
		}
	}
}

// shutdownGrace is how long a node that cannot continue waits for its goroutines.
const shutdownGrace = 500 * time.Millisecond

// shutdown ends raft, then the goroutines that serve it, then closes the files.
func (s *Store) shutdown(cancel context.CancelFunc, wg *sync.WaitGroup) error {
	down := s.raft.Shutdown()
	s.transport.Close() // end messages in progress now, not at their timeout
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		down.Error() // always nil; it waits
		cancel()
		wg.Wait()
	}()
	select {
	case <-ended:
	case <-s.fatal.ended:
		select {
		case <-ended:
		case <-s.deps.Clock.After(shutdownGrace):
			return s.fatal.err() // a goroutine is in the kernel: nothing can be closed
		}
	}
	if s.fatal.broken.Load() {
		return s.fatal.err()
	}
	closed := make(chan error, 1)
	go func() { closed <- s.close() }()
	select {
	case err := <-closed:
		return errors.Join(s.fatal.err(), err)
	case <-s.fatal.stuck: // on a disk that fails now
		return s.fatal.err()
	}
}

// close closes what is open, newest first.
func (s *Store) close() error {
	var err error
	if s.transport != nil {
		err = errors.Join(err, s.transport.Close())
	}
	if s.state != nil {
		err = errors.Join(err, s.state.close())
	}
	if s.log != nil {
		err = errors.Join(err, s.log.Close())
	}
	return err
}

// reconcile makes log, state and snapshots consistent after a stop at any point of a restore. It
// refuses a directory with missing parts.
func (s *Store) reconcile() error {
	index, err := applied(s.state.db)
	if err != nil {
		return err
	}
	snap := s.snapshots.newest()
	if snap != nil && index < snap.applied {
		// The node stopped after it received a snapshot and before the state was replaced, or the
		// state was lost. Raft will begin after the snapshot.
		if err := s.restore(snap); err != nil {
			return fmt.Errorf("restore the state from snapshot %d: %w", snap.meta.Index, err)
		}
	} else {
		s.machine.last.raise(index)
	}
	return s.reconcileLog(snap, index)
}

// reconcileLog drops a log that the newest snapshot has replaced. Raft deletes the log after it
// received a snapshot, and the node may stop before.
func (s *Store) reconcileLog(snap *snapshot, applied uint64) error {
	first, err := s.log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return err
	}
	stale, err := s.log.replacedBy(snap)
	if err != nil {
		return err
	}
	if stale {
		return s.log.reset()
	}
	var covered uint64
	if snap != nil {
		covered = snap.meta.Index
	}
	// A received snapshot may have more entries than it says, because its source continued
	// meanwhile. The log that raft dropped for it is not missing.
	received := snap != nil && snap.form != snapTaken
	if first > covered+1 || (last == 0 && covered < applied && !received) {
		return corruptf("the log begins at %d, the newest snapshot ends at %d, the state at %d: entries are missing",
			first, covered, applied)
	}
	return nil
}

// restore replaces the state by a snapshot's: it writes a new database next to the current one and
// exchanges them. The snapshot must not be removed meanwhile.
func (s *Store) restore(snap *snapshot) error {
	start := s.deps.Clock.Now()
	number := s.state.number + 1
	dir := s.state.path(number)
	if err := s.deps.FS.RemoveAll(dir); err != nil {
		return err
	}
	if err := s.snapshots.layOut(snap, dir); err != nil {
		return errors.Join(err, s.deps.FS.RemoveAll(dir))
	}
	// dir may be the name of an interrupted restore whose files were removed without a sync. After
	// a power cut CURRENT must not name those.
	if err := s.deps.FS.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := s.state.exchange(number); err != nil {
		s.fatal.set(fmt.Errorf("exchange the state: %w", err))
		return err
	}
	index, err := applied(s.state.db)
	if err != nil {
		return err
	}
	if index < snap.applied {
		return corruptf("snapshot: its state ends at %d, it says at %d", index, snap.applied)
	}
	s.machine.last.raise(index)
	s.deps.Metrics.Snapshots.WithLabelValues("restored").Inc()
	s.deps.Metrics.SnapshotSeconds.Observe(s.deps.Clock.Since(start).Seconds())
	s.deps.Log.Info("state restored from a snapshot", "index", index)
	return nil
}

// View calls fn with a consistent state, and the index of its last entry. The state has everything
// that was applied before the call, so that a linearizable read must call ReadBarrier first. r and
// its results must not be used after fn. View returns an error of fn unchanged. A View delays only
// the installation of a snapshot from another node.
func (s *Store) View(fn func(r kvtx.Reader, applied uint64) error) error {
	select {
	case <-s.fatal.ended: // the goroutine that closes the state may stay with its lock: see fatal.dieHere
		return s.stopped("raftstore.View")
	default:
	}
	select {
	case <-s.ready:
	default:
		return s.stopped("raftstore.View")
	}
	return s.state.read(func(r viewReader, applied uint64) error { return fn(r, applied) })
}

// stopped is the error for calls to a node that does not run.
func (s *Store) stopped(op string) error {
	err := s.fatal.err()
	if err == nil {
		err = errors.New("the node is not running")
	}
	return &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: err}
}
