package raftstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/leakcheck"
)

// The goroutines that confirm reads end with the leadership. After changes of leader only the
// present leader has them, one for each other server.
func TestWhatConfirmsReadsEndsWithTheLeadership(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	const sender = "raftstore.(*senders).run"
	others := leakcheck.Now().Take(sender) // of other tests
	for _, name := range g.names {
		require.Eventually(t, func() bool {
			n := g.leader()
			if n.name != name {
				_ = n.store.TransferTo(name) // tried again
				return false
			}
			return n.store.ReadBarrier(t.Context()) == nil
		}, time.Minute, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return leakcheck.Now().Take(sender) <= others+len(g.names)-1 }, time.Minute, 10*time.Millisecond)
}
