package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/lockwait"
	"github.com/morainefs/moraine/metadata/members"
	"github.com/morainefs/moraine/metadata/repair"
	"github.com/morainefs/moraine/metadata/retain"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// leader is one leadership of this server, with everything that only a leader knows. It is made
// when the server begins to lead and dropped when it stops.
type leader struct {
	*lead.Term
	cfg    *Config
	deps   *Deps
	server *Server

	log      *commandLog
	proposer *proposer
	sessions *sessions // live sessions
	desk     *sessionDesk
	jobs     *jobDesk
	runner   *runner
	permits  *permits
	keys     *keyring
	backups  *backupDesk
	checks   *stateChecker
	routing  *routing
	fleet    *fleet.Fleet
	members  *members.Group
	repair   *repair.Repair
	retain   *retain.Keeper
	tokens   *signer
	lease    *leases.Table
	pulse    pulse
	leases   *leases.Keeper
	locks    *lockwait.Queue

	delegations *delegator

	steps   lead.Signal // a checkpoint changed
	repairs lead.Poke   // the repair queue, or the possible repairs, changed

	// endedCounted is when ended grants were last counted; only the tick uses it.
	endedCounted time.Time
}

// newLeader makes the parts of a leadership. done is closed when the leadership ends.
func newLeader(s *Server, done <-chan struct{}) *leader {
	term := &lead.Term{Node: s.cfg.Node, Store: s.store, Machine: s.machine, Clock: s.deps.Clock, Log: s.deps.Log, Metrics: s.deps.Metrics,
		Began: s.deps.Clock.Now(), Done: done, NotLeader: s.notLeader, Hasty: s.cfg.Hasty}
	l := &leader{
		Term: term, cfg: &s.cfg, deps: &s.deps, server: s, lease: s.lease,
		sessions: newSessions(s.cfg.SessionTimeout, s.cfg.MaxSessions),
		steps:    lead.NewSignal(),
		repairs:  lead.NewPoke(),
	}
	l.tokens = &signer{life: s.cfg.TokenLife, time: term.ClusterTime}
	l.pulse.clock = term.Clock
	l.routing = &routing{Term: term}
	l.permits = &permits{Term: term, tokens: l.tokens}
	l.keys = &keyring{Term: term, life: s.cfg.KeyLife, rand: s.deps.Rand, secrets: &s.secrets, tokens: l.tokens}
	l.backups = &backupDesk{Term: term, cfg: &s.cfg, kept: s.kept, backups: &s.backups, leads: func() bool { return s.leader.Load() == l }}
	l.checks = &stateChecker{Term: term, cfg: &s.cfg, checks: &s.checks}
	l.proposer = newProposer(l.cfg, l.deps, s.store, l.observe)
	l.leases = leases.NewKeeper(term, s.lease, l.sessions)
	l.log = &commandLog{node: s.cfg.Node, proposer: l.proposer, leases: l.leases, done: done}
	term.Commands = l.log
	l.fleet = fleet.New(term, fleet.Config{Suspect: s.cfg.Suspect, Grace: s.cfg.Grace, RepairGrace: s.cfg.RepairGrace, SlowTimes: s.cfg.SlowTimes,
		BackupHorizon: s.cfg.BackupHorizon, SharesDisk: s.cfg.SharesDisk, Expires: s.deps.Expires},
		fleetLeader{server: s, sessions: l.sessions, tokens: l.tokens, space: func() bool { return l.members.OutOfSpace() }, repairs: l.repairs})
	l.repair = repair.New(term, repair.Config{Suspect: s.cfg.Suspect, Grace: s.cfg.Grace, RepairGrace: s.cfg.RepairGrace, MaxRepairs: s.cfg.MaxRepairs,
		RepairsPerSecond: s.cfg.RepairsPerSecond, MinProtection: s.cfg.MinProtection, RewriteLive: s.cfg.RewriteLive, RewriteEvery: s.cfg.RewriteEvery,
		PackAfter: s.cfg.PackAfter, RewriteBytesPerSecond: s.cfg.RewriteBytesPerSecond, MaxMissing: maxMissing, JudgeFor: judgeFor}, l.fleet, repairLeader{l.permits, l.sessions}, l.repairs)
	l.retain = retain.New(term)
	l.locks = lockwait.New(term)
	l.delegations = &delegator{Term: term, lease: s.lease, leases: l.leases, outOfSpace: func() bool { return l.members.OutOfSpace() }}
	l.desk = &sessionDesk{Term: term, cfg: &s.cfg, rand: s.deps.Rand, server: s, sessions: l.sessions, log: l.log, tokens: l.tokens,
		routing: l.routing, fleet: l.fleet}
	l.jobs = &jobDesk{Term: term, fleet: l.fleet, permits: l.permits, ready: lead.NewSignal()}
	l.runner = newRunner(term, &s.cfg, l.log)
	l.members = members.New(term, membersServer{Server: s, sessions: l.sessions, fleet: l.fleet})
	return l
}

// lead leads until ctx ends. It returns an error early if it could not begin to lead.
func (s *Server) lead(ctx context.Context) error {
	done := make(chan struct{})
	l := newLeader(s, done)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { l.proposer.work(ctx); return nil })
	g.Go(func() error {
		defer close(done)
		if err := l.prepare(ctx); err != nil {
			return fmt.Errorf("prepare to lead: %w", err)
		}
		l.Metrics.Leaderships.Inc()
		l.Metrics.Leading.Set(1)
		l.fleet.CountHosts(l.fleet.Topology.View())
		_ = l.measure(ctx, l.Began)
		l.Log.Info("serving as leader", "term", s.store.Term(), "sessions", l.sessions.count())
		l.lease.Lead(l.sessions.holding())
		s.leader.Store(l)
		defer func() {
			s.leader.Store(nil)
			l.lease.Follow()
			if err := s.backups.closeAll(); err != nil {
				l.Log.Warn("could not close the snapshots of backups", "err", err)
			}
			l.Metrics.StopLeading()
			l.Log.Info("stopped leading")
		}()
		l.run(ctx)
		return nil
	})
	return g.Wait()
}

// run runs the leader's loops until ctx ends.
func (l *leader) run(ctx context.Context) {
	var wg sync.WaitGroup
	works := []func(context.Context){l.pulse.keep, l.keepTime, l.fleet.FollowDevices, l.runner.runJobs, l.backups.keepBackups, l.checks.checkStates, l.delegations.saveSpace}
	for _, work := range slices.Concat(works, l.repair.Works(), l.retain.Works()) {
		wg.Go(func() { work(ctx) })
	}
	wg.Wait()
}

// prepare builds the leader's memory from a state with every entry of earlier leaders.
func (l *leader) prepare(ctx context.Context) error {
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return err
	}
	if err := l.identify(ctx); err != nil {
		return err
	}
	l.tokens.cluster = l.Cluster
	l.server.askSecret(ctx)
	if err := l.keys.loadKeys(); err != nil {
		return err
	}
	if err := l.keys.rotateKey(ctx); err != nil {
		return err
	}
	if err := l.routing.loadRouting(); err != nil {
		return err
	}
	if err := l.desk.loadSessions(); err != nil {
		return err
	}
	// Load this before any request: otherwise the leader would treat every certificate as not
	// revoked.
	if err := l.server.loadRevoked(); err != nil {
		return err
	}
	return l.fleet.LoadHosts()
}

// identify reads the cluster's identity, or writes it in a new cluster.
func (l *leader) identify(ctx context.Context) error {
	err := l.readCluster()
	if errors.Is(err, moraine.Unavailable) {
		if _, err = l.Command(ctx, &statepb.Command{Op: &statepb.Command_Init{
			Init: &statepb.Init{Cluster: l.cfg.Cluster[:], Incarnation: 1}}}); err != nil {
			return err
		}
		err = l.readCluster()
	}
	if err != nil {
		return err
	}
	return l.beginLevel(ctx)
}

// beginLevel gives a cluster that has no sessions and devices yet the feature level of this build.
// Any other cluster keeps its level, because one of its voters may be a server of an earlier build.
func (l *leader) beginLevel(ctx context.Context) error {
	fresh := false
	err := l.Store.View(func(r kvtx.Reader, _ uint64) error {
		info, err := kvtx.Cluster(l.Machine.View(r))
		if err != nil || info.FeatureLevel >= l.Machine.Level {
			return err
		}
		fresh, err = kvtx.Unused(l.Machine.View(r))
		return err
	})
	if err != nil || !fresh {
		return err
	}
	_, err = l.Command(ctx, &statepb.Command{Op: &statepb.Command_SetFeatureLevel{
		SetFeatureLevel: &statepb.SetFeatureLevel{Level: l.Machine.Level}}})
	return err
}

// readCluster loads the cluster's identity; Unavailable if the state has none yet.
func (l *leader) readCluster() error {
	return l.Store.View(func(r kvtx.Reader, _ uint64) error {
		info, err := kvtx.Cluster(l.Machine.View(r))
		if err != nil {
			return err
		}
		if info.UUID != l.cfg.Cluster {
			return &moraine.Error{Op: "metadata.identify", Ref: info.UUID.String(), Kind: moraine.WrongCluster,
				Err: fmt.Errorf("this server belongs to cluster %s", l.cfg.Cluster)}
		}
		l.Cluster = lead.ClusterID{UUID: info.UUID, Incarnation: info.Incarnation}
		l.server.incarnation.Store(uint32(info.Incarnation))
		if m := l.server.seating(); m != nil {
			m.SawIncarnation(info.Incarnation)
		}
		return nil
	})
}

// observe wakes the loops that a result of this leader's entries concerns. It runs on the
// proposer's workers, after readers can see the entry, and must not block.
func (l *leader) observe(r *state.Result) {
	ev := &r.Events
	if ev.JobsReady {
		l.jobs.ready.Fire()
		l.runner.runnable.Set()
	}
	l.repair.Observe(ev)
	l.retain.Observe(ev)
	l.locks.Observe(ev)
	l.leases.Observe(ev)
	if ev.Routing != 0 {
		l.routing.sawRouting(ev.Routing)
	}
	if ev.DevicesChanged {
		l.fleet.HostsRead.Set()
	}
	if len(ev.StepsChanged) > 0 {
		l.steps.Fire()
	}
	if ev.DirUnnamed {
		l.desk.strayed.Store(true)
	}
	if len(ev.SessionsEnded) > 0 {
		ids := make([]uint64, len(ev.SessionsEnded))
		for i, id := range ev.SessionsEnded {
			ids[i] = uint64(id)
		}
		l.sessions.remove(ids)
	}
}

// catchUp processes entries whose answers were lost, in place of observe and the callers of
// propose. It loads the sessions and hosts that they made from the state, and wakes everything that
// may wait for them. It runs after a later entry has been applied, so that each of these entries is
// in the state or never will be. Without it, a session whose client died before it received the
// answer would not be in memory and would never expire.
func (l *leader) catchUp() error {
	l.Metrics.CatchUps.Inc()
	if err := l.routing.loadRouting(); err != nil {
		return err
	}
	if err := l.desk.loadSessions(); err != nil {
		return err
	}
	if err := l.fleet.LoadHosts(); err != nil { // this also wakes the repairs
		return err
	}
	l.desk.strayed.Store(true)
	l.locks.WakeAll()
	l.leases.CatchUp()
	l.jobs.ready.Fire()
	l.runner.runnable.Set()
	l.steps.Fire()
	return nil
}
