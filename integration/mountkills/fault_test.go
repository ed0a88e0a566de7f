package mountkills_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fault is what happens in the middle of a round.
type fault struct {
	name string
	long bool // in the long form only
	// daemon is the mount whose daemon is killed, -1 for none.
	daemon int
	// strike does it, and returns when everything runs again.
	strike func(t *testing.T, b *bench, r *rand.Rand)
}

var faults = []fault{
	{name: "nothing", daemon: -1, strike: func(*testing.T, *bench, *rand.Rand) {}},
	{name: "leader killed", daemon: -1, strike: func(t *testing.T, b *bench, r *rand.Rand) {
		n := b.cluster.Node(b.leader(t))
		require.NoError(t, n.Kill())
		time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
		require.NoError(t, n.Start())
		require.NoError(t, n.Ready(t.Context()))
	}},
	{name: "daemon of mount 0 killed", daemon: 0, strike: func(t *testing.T, b *bench, _ *rand.Rand) { b.mounts[0].crash(t) }},
	{name: "daemon of mount 1 killed", daemon: 1, strike: func(t *testing.T, b *bench, _ *rand.Rand) { b.mounts[1].crash(t) }},
	// The leader does not see that its term is over, and answers late what it had read before.
	{name: "leader stopped", long: true, daemon: -1, strike: func(t *testing.T, b *bench, r *rand.Rand) {
		n := b.cluster.Node(b.leader(t))
		require.NoError(t, n.Signal(syscall.SIGSTOP))
		time.Sleep(2*time.Second + time.Duration(r.IntN(6000))*time.Millisecond)
		require.NoError(t, n.Signal(syscall.SIGCONT))
		require.NoError(t, n.Ready(t.Context()))
	}},
	// Both at once: the next daemon begins while there is no leader.
	{name: "leader and daemon of mount 0 killed", long: true, daemon: 0, strike: func(t *testing.T, b *bench, r *rand.Rand) {
		n := b.cluster.Node(b.leader(t))
		require.NoError(t, n.Kill())
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		b.mounts[0].crash(t)
		require.NoError(t, n.Start())
		require.NoError(t, n.Ready(t.Context()))
	}},
}

// permits reports whether the call of a program may have failed with the error. Only the crash of the
// daemon of its own mount may show: a change of the leader, or the crash of another daemon, is a pause.
func (c *cell) permits(prog int, e event) bool {
	if e.Err == "" {
		return true
	}
	if e.Err == "ESTALE" && e.Call == "read renamed" { // replaced twice during the open
		return true
	}
	if c.fault.daemon != prog || e.End < c.struck {
		return false
	}
	switch e.Err {
	case "EIO": // written, and lost
		return e.Writes
	case "ETIMEDOUT": // the answer of a change was lost
		return e.Changes
	case "ESTALE", "ENOENT": // made in a delegated directory, and lost
		return e.Made
	}
	return false
}

// mistakes are the errors that no promise permits. It counts the others.
func (c *cell) mistakes() (all []string) {
	for prog, events := range c.events {
		for _, e := range events {
			switch {
			case e.Wrong != "":
				all = append(all, fmt.Sprintf("mount %d: %s: %s", prog, e.Call, e.Wrong))
			case !c.permits(prog, e):
				all = append(all, fmt.Sprintf("mount %d: %s failed with %s, %v after the fault", prog, e.Call, e.Err, time.Duration(e.End-c.struck)))
			case e.Err != "":
				c.permitted[e.Call+" "+e.Err]++
			}
		}
	}
	return all
}
