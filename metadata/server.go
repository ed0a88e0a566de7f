// Package metadata is the metadata service of a cluster. It answers the requests of clients and
// chunkservers over a replicated log (a Store), and does the leader's own work. It advances cluster
// time, expires sessions that are not renewed, places stripes, and runs the jobs that only change
// metadata.
//
// The parts of a leadership are separate packages. leases has what sessions may
// answer from their caches, fleet the hosts and devices. The others are repair,
// and members (of the Raft group). Package lead has what they share. Package
// state defines what a command does, package place chooses where chunks go, and
// package raftstore replicates the log. The leader never connects to other
// servers: a chunkserver gets its work in the reply to its heartbeat, or by
// leasing a job.
//
// The path of a mutation: Do finds the kind of request and checks that its caller may send it
// (ops.go, access.go). The leader's memory must have its session as live (sessiondesk.go). A part
// of the leader serves the request and proposes a command (commands.go). The command is encoded
// once and waits for a place in an entry (propose.go). The store replicates the entry, and every
// replica applies it (fsm.go). The caller gets its own result, and the result wakes what waits for
// it: jobs, repairs, waiters for a checkpoint. A read waits for a round of the store that proves
// that this server still leads, shared with all concurrent reads. It is then answered from a
// snapshot (requests.go).
//
// The server drops what only the leader knows (leader.go) when it stops
// leading. It rebuilds that, with a full term for everything, when it begins to
// lead. Locks are leaves: no method calls another part while it holds one.
package metadata

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/autobackup"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// partition is the partition that this service serves.
const partition = moraine.Partition(0)

// Server is one metadata server. It implements transport.Metadata.
type Server struct {
	cfg     Config
	deps    Deps
	ops     opTable
	machine *state.Machine
	store   Store
	peers   map[string]Peer
	// leader is this server's leadership; nil while it does not lead.
	leader atomic.Pointer[leader]
	// incarnation is the metadata's incarnation when this server last led; 0 before.
	incarnation atomic.Uint32
	stage       atomic.Int32 // a wire.MemberStage; unknown before Run
	backups     backups
	kept        *autobackup.Backups // backups that the leader makes automatically
	// diverged receives a value when the state was found to differ from the leader's.
	diverged chan struct{}
	lease    *leases.Table
	secrets  secretKeeper
	checks   stateChecks
	// revoked are the revoked certificates. revokedServers are those of them that a server may
	// have, which every client gets.
	revoked, revokedServers atomic.Pointer[transport.Revocations]
}

var _ transport.Metadata = (*Server)(nil)

// New checks cfg and makes a server. It opens and starts nothing.
func New(cfg Config, deps Deps) (*Server, error) {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if deps.NewStore == nil {
		return nil, &moraine.Error{Op: "metadata.New", Kind: moraine.InvalidArgument, Err: fmt.Errorf("no store was given")}
	}
	lease := leases.NewTable(deps.Metrics, deps.Clock.Now, cfg.SessionTimeout)
	kept := autobackup.New(autobackup.Config{Dir: cfg.BackupDir, Every: cfg.BackupEvery, Keep: cfg.BackupKeep, Horizon: cfg.BackupHorizon, Cluster: cfg.Cluster, Node: cfg.Node},
		autobackup.Deps{FS: deps.FS, Clock: deps.Clock, Log: deps.Log})
	machine := state.New(partition)
	if cfg.Future {
		machine = state.NewFuture(partition)
	}
	s := &Server{cfg: cfg, deps: deps, lease: lease, kept: kept, machine: machine, ops: newOpTable(deps.Metrics, machine.Level), peers: make(map[string]Peer),
		diverged: make(chan struct{}, 1), secrets: secretKeeper{store: deps.Secrets}}
	for _, p := range cfg.Peers {
		s.peers[p.ID] = p
	}
	store, err := deps.NewStore(machineFSM{s.machine, s.diverged, lease, &atomic.Bool{}, deps.Clock, newApplyTimes(deps.Metrics)})
	if err != nil {
		return nil, err
	}
	s.store = store
	return s, nil
}

// Incarnation returns the metadata's incarnation; 0 until this server has led. The transport's
// server uses it: a follower redirects its callers and reports no incarnation.
func (s *Server) Incarnation() moraine.Incarnation { return moraine.Incarnation(s.incarnation.Load()) }

// Run serves until ctx ends, the store fails, or the state is found to differ from the leader's
// (Corrupt). It returns after everything that it started has ended.
func (s *Server) Run(ctx context.Context) error {
	if err := s.enter(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := s.secrets.load(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.store.Run(ctx) })
	g.Go(func() error { return s.beat(ctx) })
	g.Go(func() error { s.followLeadership(ctx); return nil })
	g.Go(func() error { s.followRevoked(ctx); return nil })
	g.Go(func() error { return s.watchDivergence(ctx) })
	g.Go(func() error { <-ctx.Done(); return s.backups.closeAll() })
	err := g.Wait()
	if err != nil && ctx.Err() != nil && moraine.KindOf(err) == moraine.Canceled {
		return nil
	}
	return err
}

// watchDivergence stops this server when its state differs from the leader's, because its answers
// could be wrong once it leads.
func (s *Server) watchDivergence(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.diverged:
		id, _ := s.store.Leader()
		return &moraine.Error{Op: "metadata.Run", Ref: s.cfg.Node, Kind: moraine.Corrupt,
			Err: fmt.Errorf("the state here differs from that of the leader %s: one of the two is damaged. "+
				"If the other servers keep running, replace this one (`moraine metadata replace`). "+
				"If they stop too, stop the leader, and start it again when another server leads", id)}
	}
}

// followLeadership leads whenever the store reports that this node leads.
func (s *Server) followLeadership(ctx context.Context) {
	changes := s.store.LeadershipChanges()
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case is := <-changes:
			stop()
			stop = func() {}
			if is {
				stop = s.startLeading(ctx)
			}
		}
	}
}

// startLeading leads in its own goroutine. The function that it returns ends that and waits for it.
func (s *Server) startLeading(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := s.lead(ctx); err != nil && ctx.Err() == nil {
				s.deps.Log.Warn("could not start to lead; trying again", "err", err)
				lead.Sleep(ctx, s.deps.Clock, leadRetry)
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// leadRetry is the pause before the next attempt to begin to lead.
const leadRetry = 200 * time.Millisecond

// Do implements transport.Metadata. Errors are *moraine.Error. A NotLeader error wraps a
// *transport.LeaderHint if the leader is known.
func (s *Server) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	op := s.ops.of(req)
	if op == nil {
		return nil, &moraine.Error{Op: "metadata", Kind: moraine.Unimplemented,
			Err: fmt.Errorf("this build does not know the request: upgrade the server")}
	}
	resp, err := s.serve(ctx, op, req)
	if err == nil && resp.GetError() != nil {
		err = transport.ErrorFromWire(resp.Error)
	}
	if err != nil {
		err = wrap(op.Name, err)
		s.deps.Metrics.Requests.WithLabelValues(op.Name, moraine.KindOf(err).String()).Inc()
		op.counts.failed.Add(1)
		return nil, err
	}
	op.ok.Inc()
	op.counts.answered.Add(1)
	return resp, nil
}

func (s *Server) serve(ctx context.Context, op *op, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if moraine.Partition(req.Partition) != partition {
		return nil, &moraine.Error{Kind: moraine.Misrouted, Err: fmt.Errorf("this server does not serve partition %d", req.Partition)}
	}
	if err := s.refuseRevoked(transport.PeerFrom(ctx)); err != nil {
		return nil, err
	}
	c, err := admit(transport.PeerFrom(ctx), op, req)
	if err != nil {
		return nil, err
	}
	if op.local != nil {
		return op.local(s, ctx, c)
	}
	l := s.leader.Load()
	if l == nil {
		return nil, s.notLeader()
	}
	if err := l.checkIncarnation(moraine.ID(req.Session)); err != nil {
		return nil, err
	}
	if err := l.routing.routed(op, req); err != nil {
		return nil, err
	}
	if op.Effect != wire.Operation_READ { // the state machine checks the session of a read
		if err := l.desk.admitSession(op, c); err != nil {
			return nil, err
		}
	}
	if err := l.Speaks(ctx, op.since); err != nil {
		return nil, err
	}
	if op.Grows && !op.ReadOnly(req) && l.members.OutOfSpace() {
		return nil, outOfSpaceError()
	}
	resp, err := op.serve(l, ctx, c)
	if err != nil && moraine.KindOf(err) == moraine.NotLeader {
		return nil, s.notLeader()
	}
	return resp, err
}

func outOfSpaceError() error {
	return &moraine.Error{Kind: moraine.NoSpace,
		Err: fmt.Errorf("the disk of this metadata server, or of most of them, is nearly full: only requests that free space succeed (`moraine cluster status` names the disks)")}
}

// checkIncarnation refuses a session of another incarnation than this leader's. A session of a
// newer one means that this server is outlived, and the client must find another server.
func (l *leader) checkIncarnation(session moraine.ID) error {
	own := l.Cluster.Incarnation
	switch of := session.Incarnation(); {
	case session == 0 || of == own:
		return nil
	case of > own:
		return &moraine.Error{Ref: session.String(), Kind: moraine.Unavailable,
			Err: fmt.Errorf("the session has incarnation %d of the metadata, but this server has the abandoned incarnation %d", of, own)}
	default:
		return &moraine.Error{Ref: session.String(), Kind: moraine.SessionExpired,
			Err: fmt.Errorf("it has incarnation %d of the metadata, but the current one is %d", of, own)}
	}
}

// notLeader returns the error that names the leader, as far as this node knows.
func (s *Server) notLeader() error {
	id, here := s.store.Leader()
	e := &moraine.Error{Kind: moraine.NotLeader}
	switch {
	case here:
		e.Kind, e.Err = moraine.Unavailable, fmt.Errorf("this server is about to lead: try again in a moment")
	case id == "":
		e.Err = fmt.Errorf("no leader is known")
	default:
		e.Err = &transport.LeaderHint{ID: id, Addresses: s.addresses(id)}
	}
	return e
}

// wrap makes err a *moraine.Error that names the request.
func wrap(name string, err error) error {
	if e, ok := err.(*moraine.Error); ok {
		if e.Op != "" {
			return e
		}
		named := *e
		named.Op = name
		return &named
	}
	return &moraine.Error{Op: name, Kind: moraine.KindOf(err), Err: err}
}
