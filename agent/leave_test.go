package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// slotsInUse counts the slots of a node that this process has mapped or open.
func (n *node) slotsInUse() (count int) {
	n.t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(n.t, err)
	count = strings.Count(string(maps), filepath.Join(n.arena, "slot-"))
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(n.t, err)
	for _, fd := range open {
		name, _ := os.Readlink("/proc/self/fd/" + fd.Name()) // it may be closed by now
		if strings.HasPrefix(name, filepath.Join(n.arena, "slot-")) {
			count++
		}
	}
	return count
}

// TestAnAgentThatEndsUnmapsItsSlots: the program that runs an agent has no memory of the slots that the
// ended agent leaves to the next one: those of committed parts, and of parts that are only sealed.
func TestAnAgentThatEndsUnmapsItsSlots(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	tr.save(1, 0)
	n.requireStep(1, 1)
	n.eventually(func() bool { return n.states()[1] == agentproto.Committed })
	tr.die()
	require.NotZero(t, n.slotsInUse())
	require.NoError(t, n.stop())
	require.Zero(t, n.slotsInUse())

	n.wrap = holdSeals
	n.start(0)
	tr = n.trainer("two", 0, 1)
	tr.save(2, 0)
	tr.die()
	require.Error(t, n.stop(), "step 2 is not written")
	require.Zero(t, n.slotsInUse())

	n.wrap = nil
	n.start(time.Minute)
	n.requireStep(2, 1)
	require.NoError(t, n.stop())
	require.Zero(t, n.slotsInUse())
}
