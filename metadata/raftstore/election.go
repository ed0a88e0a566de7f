package raftstore

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// A follower of raft v1.8.0 looks at its leader when a timer fires that it draws
// from [T, 2T), T being Config.HeartbeatTimeout, and that no message of the leader
// sets back: it sees the death between T and 3T after it. And it refuses its vote
// for as long as it has not seen it, so that in a group of three both that are left
// must have, while the one with the longer log may be waiting for its next try.
//
// So the silence is watched here (silence). A follower campaigns when it has lasted
// for T and up to half of it more, drawn anew each time; look makes raft do so. And
// a voter that has heard nothing for three quarters of T no longer lets its leader
// stand in the way of a candidate (voting). What follows is raft's own election:
// pre-vote, terms, and the log that must be as long as the voter's. A node that lost
// its network still disturbs nobody, since a voter that hears its leader refuses.
//
// The silence is counted in ticks that this process saw pass. One that was given
// no processor for a while has not listened, and does not hold it against its
// leader: that is what makes needless elections on a busy machine.

const (
	// silenceTicks is how many looks at the leader there are per
	// Config.HeartbeatTimeout.
	silenceTicks = 16
	// lookMargin is by how much the timeout is lowered, and raised again, to make
	// raft look: it does so whenever the timeout is lowered.
	lookMargin = time.Millisecond
)

// silence is for how long a follower has heard nothing.
type silence struct {
	timeout  time.Duration
	contact  time.Time     // of the last message
	heard    time.Duration // of silence since, as far as this process ran
	patience time.Duration
}

// tick takes another look, elapsed after the one before; contact is when the
// leader's last message came. It reports whether the leader is to be given up.
func (s *silence) tick(contact time.Time, elapsed time.Duration) bool {
	if contact != s.contact || s.patience == 0 {
		s.contact, s.heard = contact, 0
		// Drawn anew for each silence, so that followers seldom campaign at once.
		s.patience = s.timeout + rand.N(s.timeout/2)
		return false
	}
	s.heard += min(elapsed, 2*s.timeout/silenceTicks)
	if s.heard < s.patience {
		return false
	}
	s.patience = 0
	return true
}

// watchLeader has this node campaign when its leader has been silent for
// Config.HeartbeatTimeout, and up to half of it more, until ctx ends.
func (s *Store) watchLeader(ctx context.Context) {
	quiet := silence{timeout: s.cfg.HeartbeatTimeout}
	every := max(s.cfg.HeartbeatTimeout/silenceTicks, time.Millisecond)
	select {
	case <-s.deps.Clock.After(rand.N(every)): // nodes that began at once do not look at once
	case <-ctx.Done():
		return
	}
	ticker := s.deps.Clock.NewTicker(every)
	defer ticker.Stop()
	last := s.deps.Clock.Now()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := s.deps.Clock.Now()
		elapsed := now.Sub(last)
		last = now
		if _, leader := s.raft.LeaderWithID(); leader == "" || s.raft.State() != raft.Follower {
			quiet.patience = 0 // raft's own timers rule where no leader is known
			s.silent.Store(false)
			continue
		}
		over := quiet.tick(s.raft.LastContact(), elapsed)
		s.silent.Store(over || quiet.heard >= s.cfg.HeartbeatTimeout*3/4)
		if over {
			s.look()
		}
	}
}

// look has raft, a follower, look now whether its leader has been silent for
// Config.HeartbeatTimeout. When raft takes the news the timeout is back at what it
// was: the silence has lasted for longer in any case.
func (s *Store) look() {
	s.deps.Metrics.LeaderSilent.Inc()
	rc := s.raft.ReloadableConfig()
	for _, timeout := range []time.Duration{s.cfg.HeartbeatTimeout - lookMargin, s.cfg.HeartbeatTimeout} {
		rc.HeartbeatTimeout = timeout
		if err := s.raft.ReloadConfig(rc); err != nil {
			s.deps.Log.Warn("raft was not told to look at its leader", "err", err)
		}
	}
}

// voting is the messages from other nodes as raft gets them: while this node's
// leader is silent, with what makes raft consider a candidate in spite of it.
type voting struct {
	out    chan raft.RPC
	silent *atomic.Bool
	leader func() raft.ServerAddress
	closed chan struct{}
}

// forward passes the messages on, until the transport is closed.
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

// consider returns the request as raft does not refuse it for the leader that it
// knows: a pre-vote only where it comes from that leader itself, by whose address
// raft goes there and nowhere else; a vote where a leader that hands over asked for
// it.
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
