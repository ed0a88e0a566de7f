package raftstore_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata/raftstore"
)

// TestNextLeaderSoon takes leaders off the network, one after the other, under a clock on which
// nothing else takes time. Three times of four another one leads within the longest wait of a
// follower: one and a half heartbeat timeouts, and at most three checks (the one that first sees
// the silence, the one that sees its end, and one for the rest). Raft's own timers take two
// timeouts and more. Both followers seldom campaign simultaneously and need another round.
func TestNextLeaderSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 500 * time.Millisecond
		g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) { cfg.HeartbeatTimeout = timeout })
		g.bootstrap()
		g.startAll()
		var gaps []time.Duration
		for range 21 {
			g.propose("set k v")
			gone := g.leader().name
			rest := slices.DeleteFunc(slices.Clone(g.names), func(name string) bool { return name == gone })
			time.Sleep(3 * timeout)
			g.net.isolate(gone, true)
			began := time.Now()
			g.proposeAmong(rest, "set k v")
			gaps = append(gaps, time.Since(began))
			g.net.isolate(gone, false)
			time.Sleep(3 * timeout)
		}
		slices.Sort(gaps)
		const longest = timeout*3/2 + 3*timeout/raftstore.SilenceTicks
		t.Logf("until the next proposal is applied: median %v, three quarters within %v, worst %v", gaps[len(gaps)/2], gaps[len(gaps)*3/4], gaps[len(gaps)-1])
		require.LessOrEqual(t, gaps[len(gaps)*3/4], longest)
		g.stopAll()
	})
}

// TestNoElectionInPeace lets more than a minute pass, with a follower off the network for a part of
// it. No other node is elected, then or when it is back.
func TestNoElectionInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) { cfg.HeartbeatTimeout = 500 * time.Millisecond })
		g.bootstrap()
		g.startAll()
		g.propose("set k v")
		leader := g.leader()
		term := leader.store.Status().Term
		away := g.names[(slices.Index(g.names, leader.name)+1)%3]
		time.Sleep(30 * time.Second)
		g.net.isolate(away, true)
		time.Sleep(20 * time.Second)
		g.net.isolate(away, false)
		time.Sleep(30 * time.Second)
		g.propose("set k w")
		require.Equal(t, leader.name, g.leader().name)
		require.Equal(t, term, leader.store.Status().Term)
		g.stopAll()
	})
}

// TestSilenceIsWhatWasListenedTo: only the time that this process ran counts. A follower without a
// processor for long does not campaign for that.
func TestSilenceIsWhatWasListenedTo(t *testing.T) {
	const timeout, tick = 480 * time.Millisecond, 30 * time.Millisecond
	contact := time.Now()
	quiet := raftstore.NewSilence(timeout)
	require.False(t, quiet.Tick(contact, tick))
	require.False(t, quiet.Tick(contact, time.Hour), "the process was stopped")
	ticks := 1
	for ; !quiet.Tick(contact, tick); ticks++ {
		require.Less(t, time.Duration(ticks)*tick, 2*timeout)
	}
	require.Greater(t, time.Duration(ticks+2)*tick, timeout)
	require.False(t, quiet.Tick(contact, tick), "the next time is another one")
	for range 100 {
		contact = contact.Add(tick)
		require.False(t, quiet.Tick(contact, tick), "the leader is heard")
	}
}
