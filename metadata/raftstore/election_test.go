package raftstore_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata/raftstore"
)

// TestNextLeaderSoon takes leaders off the network, one after the other, under a
// clock on which nothing else takes time. Three times of four another one leads within what
// the follower that waits longest waits: one and a half heartbeat timeouts, and three
// looks at most (the one that first sees the silence, the one that sees its end, and
// one for what comes after). Raft's own timers take two timeouts and more. That both
// followers campaign at once, and take another round, is rare, whatever is drawn.
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

// TestNoElectionInPeace lets a minute and more pass, a follower off the network for some
// of them: nobody else is elected, then or when it is back.
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

// TestSilenceIsWhatWasListenedTo counts only the time that this process ran: one
// that got no processor for long does not give its leader up for it.
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
