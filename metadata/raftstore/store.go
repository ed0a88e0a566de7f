// Package raftstore keeps the metadata of a cluster on several nodes. It has a
// log that hashicorp/raft replicates and raft-wal writes, and the state that
// the log produces, in a pebble database. It does not know what the entries
// mean: an FSM applies them.
//
// It does not group commands into entries, does not retry, and does not forward: a node that does
// not lead names the leader.
//
// The path of a proposal: Propose passes the entry to raft, which appends it to
// the log here (log.go) and on the other nodes. Once a majority has synced it,
// raft passes it, with others, to machine.ApplyBatch (fsm.go). There the FSM
// writes into one batch. The Store adds the index of the last entry, commits
// the batch without a sync, and returns the FSM's result to the proposer. The
// log makes it durable: after a crash the node applies entries again that
// pebble lost, and skips those that it has. From time to time raft requests a
// snapshot (snapshot.go). The state is flushed and linked into a directory, and
// the log before it may be deleted.
//
// The path of a read: ReadBarrier (readbarrier.go) confirms with a majority
// that this node still leads. Then it waits until the state has reached the
// commit index. View then reads a consistent snapshot.
//
// The parts of a Store are group (raft and the members), proposals, leadTracker
// (the leadership of this node), readConfirmer, and leaderWatch (the leader
// that this node follows). There are also incarnations, gatekeeper (which
// servers may connect), diskWatch, machine (the state), and the files and
// connections below.
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
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// Store is one node. Its methods may be called concurrently. Before Run is ready they fail with
// Unavailable, or as on a node that does not lead.
//
// Its parts have their own locks. No call of another part happens under gatekeeper.mu, readQueue.mu
// or watermark.mu. incarnations.mu is held across a write of IDENTITY.
type Store struct {
	cfg  Config
	deps Deps

	ready chan struct{} // closed when the node takes part in its group
	fatal *fatal

	// The parts that exist from the start.
	group       *group
	incarnation *incarnations
	gate        *gatekeeper
	tracker     *leadTracker
	watch       *leaderWatch
	proposals   *proposals
	reads       *readConfirmer
	disk        *diskWatch
	reached     *watermark // the index that the state has reached

	// The files and the connections, from open on.
	log       *raftLog
	state     *stateDB
	snapshots *snapshotStore
	transport *transport
	machine   *machine
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
	s := &Store{cfg: cfg, deps: deps, ready: make(chan struct{}), fatal: newFatal(), reached: &watermark{}}
	s.fatal.node = cfg.Node
	s.assemble()
	return s, nil
}

// assemble makes the parts that exist from the start.
func (s *Store) assemble() {
	cfg, deps := &s.cfg, &s.deps
	inFlight := make(chan struct{}, cfg.MaxInFlight)
	s.group = &group{cfg: cfg}
	s.incarnation = &incarnations{cfg: cfg, deps: deps, fatal: s.fatal}
	s.gate = &gatekeeper{cfg: cfg, deps: deps, incarnation: s.incarnation}
	s.tracker = &leadTracker{cfg: cfg, deps: deps, group: s.group, reached: s.reached, ready: s.ready, inFlight: inFlight,
		notify: make(chan bool, 16), changes: make(chan bool)}
	s.watch = &leaderWatch{cfg: cfg, deps: deps, group: s.group}
	s.proposals = &proposals{cfg: cfg, deps: deps, fatal: s.fatal, group: s.group, tracker: s.tracker, inFlight: inFlight, ending: make(chan struct{}),
		entries: limit.Resource{Name: "log entries in flight", Advice: "the log's disk, or the other servers, are slow",
			Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)}}
	s.reads = &readConfirmer{cfg: cfg, deps: deps, fatal: s.fatal, group: s.group, tracker: s.tracker, reached: s.reached, queue: newReadQueue()}
	s.disk = &diskWatch{cfg: cfg, deps: deps, fatal: s.fatal, group: s.group, reached: s.reached}
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
			Err: errors.New("the directory has no node: bootstrap it first")}
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
	for _, work := range []func(context.Context){s.tracker.run, s.watch.run, s.reads.run, s.disk.run, s.disk.keepSmall} {
		wg.Go(func() { work(inner) })
	}
	close(s.ready)
	select {
	case <-ctx.Done():
		close(s.proposals.ending)
		s.handOver()
		s.proposals.drain()
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
	id, err := readIdentity(s.deps.FS, s.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !id.formed) {
		return &moraine.Error{Op: "raftstore.Open", Ref: s.cfg.Dir, Kind: moraine.NotFound,
			Err: errors.New("the node was not bootstrapped completely: bootstrap it again")}
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
	s.disk.checkSpace() // do this first: on a full disk the ballast lets the rest be written
	if err := probeDisk(&s.cfg, &s.deps); err != nil {
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
	s.log.newest, s.log.low, s.log.heldFrom = s.snapshots.newestEnd, s.disk.low, s.snapshots.heldFrom
	s.disk.log = s.log
	s.machine = &machine{deps: &s.deps, fatal: s.fatal, state: s.state, snapshots: s.snapshots, fsm: s.deps.FSM, last: s.reached}
	if err := s.machine.reconcile(s.log); err != nil {
		return err
	}
	if err := s.incarnation.learn(id, s.state, s.log); err != nil {
		return err
	}
	s.transport = newTransport(&s.cfg, &s.deps, s.group.serverAddr, &s.watch.silent, s.group.leaderAddress, s.gate.greeter())
	s.reads.transport = s.transport
	rc := raftConfig(&s.cfg, &s.deps)
	rc.NotifyCh = s.tracker.notify
	cached, err := raft.NewLogCache(4*s.cfg.MaxAppendEntries, s.log)
	if err != nil {
		return err
	}
	if s.group.raft, err = raft.NewRaft(rc, s.machine, cached, s.log, s.snapshots, s.transport); err != nil {
		return err
	}
	s.group.started.Store(s.group.raft)
	return nil
}

func raftConfig(cfg *Config, deps *Deps) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(cfg.Node)
	rc.HeartbeatTimeout = cfg.HeartbeatTimeout
	rc.ElectionTimeout = cfg.ElectionTimeout
	// raft requires it to be below the lowest timeout that it gets, which is leaderWatch's
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
	if s.group.raft.State() != raft.Leader || len(s.group.voters()) < 2 {
		return
	}
	if err := s.group.raft.LeadershipTransfer().Error(); err != nil { // ends within an election timeout
		s.deps.Log.Warn("could not hand over leadership", "err", err)
	}
}

// shutdownGrace is how long a node that cannot continue waits for its goroutines.
const shutdownGrace = 500 * time.Millisecond

// shutdown ends raft, then the goroutines that serve it, then closes the files.
func (s *Store) shutdown(cancel context.CancelFunc, wg *sync.WaitGroup) error {
	down := s.group.raft.Shutdown()
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

// View calls fn with a consistent state, and the index of its last entry. The state has everything
// that was applied before the call, so that a linearizable read must call ReadBarrier first. r and
// its results must not be used after fn. View returns an error of fn unchanged. A View delays only
// the installation of a snapshot from another node.
func (s *Store) View(fn func(r kvtx.Reader, applied uint64) error) error {
	select {
	case <-s.fatal.ended: // the goroutine that closes the state may stay with its lock: see fatal.dieHere
		return s.fatal.stopped("raftstore.View")
	default:
	}
	select {
	case <-s.ready:
	default:
		return s.fatal.stopped("raftstore.View")
	}
	return s.state.read(func(r viewReader, applied uint64) error { return fn(r, applied) })
}
