package raftstore

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// A follower of raft v1.8.0 checks its leader when a timer fires that it draws
// from [T, 2T), with T = Config.HeartbeatTimeout. Messages of the leader do not
// reset that timer, so the follower detects a death between T and 3T after it.
// It refuses its vote until then. In a group of three both survivors must have
// detected the death. The one with the longer log may then already wait for its
// next attempt.
//
// This file therefore measures the silence itself (silence). A follower campaigns after a silence
// of T plus up to half of it, drawn for each silence; look makes raft do so. A voter that received
// nothing for three quarters of T no longer refuses a candidate because of its leader (voting). The
// rest is raft's own election: pre-vote, terms, and a log at least as long as the voter's. A node
// that lost its network still disturbs nobody, because a voter with a live leader refuses it.
//
// The silence is counted in ticks that this process actually saw. A process without a processor for
// a while was not listening, and does not count that time against its leader. This avoids needless
// elections on a busy machine.

const (
	// silenceTicks is the number of checks of the leader per Config.HeartbeatTimeout.
	silenceTicks = 16
	// lookMargin is by how much the timeout is lowered and raised again. Raft
	// checks its leader whenever the timeout is lowered.
	lookMargin = time.Millisecond
)

// silence measures how long a follower has received nothing from its leader.
type silence struct {
	timeout  time.Duration
	contact  time.Time     // time of the last message
	duration time.Duration // of the silence since then, as far as this process ran
	patience time.Duration
}

// tick makes one check, elapsed after the previous one. contact is when the leader's last message
// arrived. It reports whether to campaign.
func (s *silence) tick(contact time.Time, elapsed time.Duration) bool {
	if contact != s.contact || s.patience == 0 {
		s.contact, s.duration = contact, 0
		// Drawn for each silence, so that followers seldom campaign simultaneously.
		s.patience = s.timeout + rand.N(s.timeout/2)
		return false
	}
	s.duration += min(elapsed, 2*s.timeout/silenceTicks)
	if s.duration < s.patience {
		return false
	}
	s.patience = 0
	return true
}

// leaderWatch watches the leader of this node, a follower.
type leaderWatch struct {
	cfg    *Config
	deps   *Deps
	group  *group
	silent atomic.Bool // this node has long received nothing from its leader; only run sets it
}

// run makes this node campaign when its leader has been silent for Config.HeartbeatTimeout
// plus up to half of it, until ctx ends.
func (lw *leaderWatch) run(ctx context.Context) {
	quiet := silence{timeout: lw.cfg.HeartbeatTimeout}
	every := max(lw.cfg.HeartbeatTimeout/silenceTicks, time.Millisecond)
	select {
	case <-lw.deps.Clock.After(rand.N(every)): // nodes that started simultaneously check at different times
	case <-ctx.Done():
		return
	}
	ticker := lw.deps.Clock.NewTicker(every)
	defer ticker.Stop()
	last := lw.deps.Clock.Now()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := lw.deps.Clock.Now()
		elapsed := now.Sub(last)
		last = now
		if _, leader := lw.group.raft.LeaderWithID(); leader == "" || lw.group.raft.State() != raft.Follower {
			quiet.patience = 0 // without a known leader raft's own timers apply
			lw.silent.Store(false)
			continue
		}
		over := quiet.tick(lw.group.raft.LastContact(), elapsed)
		lw.silent.Store(over || quiet.duration >= lw.cfg.HeartbeatTimeout*3/4)
		if over {
			lw.look()
		}
	}
}

// look makes raft, in a follower, check now whether its leader has been silent for
// Config.HeartbeatTimeout. By the time raft does so the timeout has its old value again; the
// silence has lasted longer in any case.
func (lw *leaderWatch) look() {
	lw.deps.Metrics.LeaderSilent.Inc()
	rc := lw.group.raft.ReloadableConfig()
	for _, timeout := range []time.Duration{lw.cfg.HeartbeatTimeout - lookMargin, lw.cfg.HeartbeatTimeout} {
		rc.HeartbeatTimeout = timeout
		if err := lw.group.raft.ReloadConfig(rc); err != nil {
			lw.deps.Log.Warn("could not make raft check its leader now", "err", err)
		}
	}
}

// voting passes messages from other nodes to raft. While this node's leader is silent, it changes
// vote requests so that raft considers the candidate.
type voting struct {
	out    chan raft.RPC
	silent *atomic.Bool
	leader func() raft.ServerAddress
	closed chan struct{}
}

// forward passes messages on until the transport is closed.
func (v *voting) forward(in <-chan raft.RPC) {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-in:
		case <-v.closed:
			return
		}
		if v.silent.Load() {
			rpc.Command = v.consider(rpc.Command)
		}
		select {
		case v.out <- rpc:
		case <-v.closed:
			return
		}
	}
}

// consider changes a request so that raft does not refuse it because of the leader that it knows. A
// pre-vote appears to come from that leader, whose address is all that raft checks there. A vote
// appears to follow a leadership transfer.
func (v *voting) consider(command any) any {
	switch req := command.(type) {
	case *raft.RequestPreVoteRequest:
		if leader := v.leader(); leader != "" {
			own := *req
			own.Addr = []byte(leader)
			return &own
		}
	case *raft.RequestVoteRequest:
		own := *req
		own.LeadershipTransfer = true
		return &own
	}
	return command
}
