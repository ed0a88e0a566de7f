// Package agent is the keeper of a training node's checkpoints. It is a process of its own: it
// owns the memory that trainers save into, and writes what they have sealed to the cluster, also
// when the trainer has died meanwhile.
//
// The path of a save: a trainer connects to the unix socket (conn.go) -> Begin gives it a slot,
// a file of the node's tmpfs (pool.go) -> the trainer copies its tensors there -> Seal writes a
// manifest beside the slot (manifest.go): the part is at level local -> the part is written to
// the cluster from the slot, and followed until its step is committed (part.go). After a crash
// the next agent finds slots and manifests, and goes on (recover.go).
//
// Before a byte is written, the agent finds out which tensors other ranks store: those of this node
// (share.go), and those of others, which it asks the metadata service for (claim.go).
//
// Locks: Agent.layouts, then Agent.mu, then pool.mu. None is held during a request.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/readonce"
)

// Config is the configuration of an agent.
type Config struct {
	// Socket is the path of the unix socket. Default agentproto.DefaultSocket.
	Socket string
	// Dir is the directory of the arenas. If it is on a disk, the agent mounts a tmpfs there, which
	// stays. Empty: a tmpfs of the agent's own below /run if it may mount, else a directory of
	// /dev/shm.
	Dir string
	// OnDisk lets Dir be on a disk. A save then waits for the disk, and a restart of the node loses
	// the parts.
	OnDisk bool
	// Memory is the limit of all arenas of the node, in bytes. It needs room for three parts of
	// each rank: the last good one, the one that is being written, and the next.
	Memory int64
	// Prefault is how many slots of each rank the agent makes as soon as it knows the size of the
	// rank's parts: a later save then finds memory whose pages are there. 0: a slot is made when a
	// save needs it.
	Prefault int
	// FlushRate bounds the bytes a second at which all parts of the node are written to the cluster.
	// 0: no bound. A push, and the end of the agent, lift it.
	FlushRate int64
	// Patience is how long a save or a read waits for memory that only readers have. A save with a seal
	// timeout waits as long as that. Default a minute.
	Patience time.Duration
	// Users may connect, besides root and the agent's own user.
	Users []uint32
	// Look is how often the agent asks the service for the newest step of each level of the runs that are
	// open. Default a minute.
	Look time.Duration
	// Grace is how long Run, once its context has ended, writes what is sealed to the cluster.
	Grace time.Duration
}

// Deps are what an agent works with. Log and Metrics may be nil.
type Deps struct {
	// Connect opens a session of its own for one run of one rank, and returns what ends it. The
	// session lives as long as the run is open: the service sees by it that the attempt is alive.
	Connect func(ctx context.Context) (*client.Client, func() error, error)
	Log     *slog.Logger
	Metrics *Metrics
	// Saves counts the writing of parts. It may be nil.
	Saves *ckpt.Metrics
}

// Agent serves the trainers of one node. Its methods may be called concurrently.
type Agent struct {
	cfg      Config
	deps     Deps
	log      *slog.Logger
	metrics  *Metrics
	pool     *pool
	pace     *pace
	shared   *readonce.Reads
	source   source
	frames   *frames
	connLog  connLog
	listener *net.UnixListener
	lock     *os.File

	// work ends what writes parts; it outlives Run's context by the grace period.
	work   context.Context
	cancel context.CancelFunc
	// running counts the goroutines of connections and of parts.
	running sync.WaitGroup

	// layouts is locked while a part's layout is decided. It is locked before mu.
	layouts sync.Mutex

	mu       sync.Mutex
	draining bool
	runs     map[runKey]*run
	parts    map[partKey]*part
	// ended are those of parts that have no slot any more, oldest first: failed ones, and good ones
	// that a newer one has replaced.
	ended []*part
	// closing counts the runs whose sessions are about to end.
	closing map[runKey]int
	// restoring counts the open steps that share their reads.
	restoring int
	figures   runFigures
	// changed is closed and replaced whenever a part changes its state.
	changed chan struct{}
	conns   map[*net.UnixConn]uint32 // with their users
	// strangers counts the connections of users who may not use the agent.
	strangers int
}

// partKey names one rank's part of a step.
type partKey struct {
	uid     uint32
	path    string
	rank    uint32
	attempt uint32
	step    uint64
}

// New claims the arenas and the socket; nothing is served before Run. It fails with Busy if
// another agent has them.
func New(cfg Config, deps Deps) (a *Agent, err error) {
	cfg.Socket, cfg.Patience = cmp.Or(cfg.Socket, agentproto.DefaultSocket), cmp.Or(cfg.Patience, lentPatience)
	a = &Agent{cfg: cfg, deps: deps, log: cmp.Or(deps.Log, slog.New(slog.DiscardHandler)), metrics: deps.Metrics,
		runs: map[runKey]*run{}, parts: map[partKey]*part{}, closing: map[runKey]int{}, changed: make(chan struct{}), conns: map[*net.UnixConn]uint32{}}
	if a.metrics == nil {
		a.metrics = NewMetrics(nil)
	}
	a.figures = runFigures{metrics: a.metrics, of: map[runOf]*agentproto.RunStatus{}, follows: map[runOf]*following{},
		isOpen: func(of runOf) bool { return isOpen(a.runs, of) }, closed: map[runOf]uint64{}}
	a.shared = readonce.New(sharedBytes)
	a.frames = newFrames()
	a.pace = newPace(cfg.FlushRate, a.metrics)
	if a.deps.Saves == nil {
		a.deps.Saves = ckpt.NewMetrics(nil)
	}
	if cfg.Dir, err = arenaDir(&cfg, a.log); err != nil {
		return nil, err
	}
	a.cfg.Dir = cfg.Dir
	if huge := hugePages(cfg.Dir); huge != "" {
		a.log.Info("the arenas have huge pages", "dir", cfg.Dir, "huge", huge)
	} else {
		a.log.Info("the arenas have no huge pages: saves take longer; let the agent mount a tmpfs of its own, or mount one with huge=within_size", "dir", cfg.Dir)
	}
	if a.pool, err = newPool(cfg.Dir, cfg.Memory); err != nil {
		return nil, err
	}
	if a.pool.limit < cfg.Memory {
		a.log.Warn("the tmpfs is smaller than --arena-memory", "dir", cfg.Dir, "memory", cfg.Memory, "used", a.pool.limit)
		a.cfg.Memory = a.pool.limit
	}
	if a.lock, err = lockDir(cfg.Dir); err != nil {
		return nil, err
	}
	if a.listener, err = listen(cfg.Socket); err != nil {
		return nil, errors.Join(err, a.lock.Close())
	}
	a.work, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// Dir returns the directory of the arenas.
func (a *Agent) Dir() string { return a.cfg.Dir }

// Run finds what an earlier agent left, serves until ctx ends, and then writes what is sealed to
// the cluster, and the newest step of each rank to level nvme, for Config.Grace at most. It fails with
// Incomplete, naming them, if parts are left that no committed step has or will have, or a step below nvme.
func (a *Agent) Run(ctx context.Context) error {
	defer a.end()
	if err := a.recover(); err != nil {
		return err
	}
	a.running.Go(a.accept)
	a.running.Go(follower{a}.follow)
	<-ctx.Done()
	p, below := a.drain(context.WithoutCancel(ctx), a.cfg.Grace)
	a.end()
	a.mu.Lock()
	left := a.list(unwritten) // a trainer may have sealed a part after drain
	a.mu.Unlock()
	return unsafe(left, p.failed(), below)
}

// unsafe is the error of an agent that ends and leaves parts in its memory only, parts that have failed, or the newest
// steps of ranks below level nvme; nil if there are none.
func unsafe(left, failed, below []agentproto.Part) error {
	var why error
	switch {
	case len(left) > 0:
		why = fmt.Errorf("%d parts are in this node's memory only (first: %s step %d, rank %d): start the agent again to go on with them",
			len(left), left[0].Run, left[0].Step, left[0].Rank)
	case len(failed) > 0:
		why = fmt.Errorf("%d parts failed while the agent ended (first: %s step %d, rank %d: %s): their steps are not saved, an earlier one is the newest: moraine ckpt ls RUN --all says why",
			len(failed), failed[0].Run, failed[0].Step, failed[0].Rank, failed[0].Error)
	case len(below) > 0:
		why = fmt.Errorf("the newest steps of %d ranks are only in the memory of the cluster (first: %s step %d, rank %d): moraine ckpt wait --level nvme brings them to its devices",
			len(below), below[0].Run, below[0].Step, below[0].Rank)
	default:
		return nil
	}
	return &moraine.Error{Op: "agent", Kind: moraine.Incomplete, Err: why}
}

// end stops everything. Sealed parts stay in the tmpfs. A second call does nothing.
func (a *Agent) end() {
	a.cancel()
	a.mu.Lock()
	a.draining = true
	conns := a.conns
	a.conns = nil
	runs := slices.Collect(maps.Values(a.runs))
	a.mu.Unlock()
	_ = a.listener.Close() // nobody is served any more
	for c := range conns {
		_ = c.Close() // ends the goroutine that reads from it
	}
	for _, r := range runs {
		<-r.ready
		if r.run != nil {
			r.run.Stop() // the cluster may not answer for long
		}
	}
	a.running.Wait()
	a.mu.Lock()
	leaveSlots(a.parts)
	a.mu.Unlock()
	a.source.close()
	a.pool.close()
	_ = a.lock.Close() // it was only held
}

// drain refuses new parts, and pushes those that are sealed, at most for grace. It returns the pusher, and the committed
// parts whose steps are below level nvme.
func (a *Agent) drain(ctx context.Context, grace time.Duration) (pusher, []agentproto.Part) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	defer a.pace.lift()()
	p := newPusher(a, moraine.NVMe, func(*part) bool { return true })
	below := slices.DeleteFunc(p.push(ctx), func(q agentproto.Part) bool { return q.State != agentproto.Committed })
	return p, below
}

// unwritten reports whether a part is sealed, and in no committed step. The caller holds the mutex.
func unwritten(p *part) bool { return p.state == agentproto.Local }

// pushed waits until each sealed part of those that want selects is in a committed step, or ctx
// ends, and returns those that are not.
func (a *Agent) pushed(ctx context.Context, want func(*part) bool) []agentproto.Part {
	for {
		a.mu.Lock()
		left, changed := a.list(func(p *part) bool { return unwritten(p) && want(p) }), a.changed
		a.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return left
		}
	}
}

// notify wakes those that wait for a part. The caller holds the mutex.
func (a *Agent) notify() {
	a.metrics.Memory.Set(float64(a.pool.inUse()))
	close(a.changed)
	a.changed = make(chan struct{})
}

// pause waits, at most until the agent ends.
func (a *Agent) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.work.Done():
	}
}
