package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

// kept are the slots of a node, as trainers keep them mapped: unlinked, they have their pages still.
type kept map[string]*os.File

func (n *node) keepSlots() kept {
	n.t.Helper()
	k := kept{}
	names, err := filepath.Glob(filepath.Join(n.arena, "slot-*"))
	require.NoError(n.t, err)
	for _, name := range names {
		if strings.HasSuffix(name, ".json") {
			continue
		}
		f, err := os.Open(name)
		require.NoError(n.t, err)
		n.t.Cleanup(func() { _ = f.Close() })
		k[name] = f
	}
	return k
}

// bytes returns the memory of the slots whose files are gone.
func (k kept) bytes(t *testing.T) (total int64) {
	t.Helper()
	for name, f := range k {
		if _, err := os.Stat(name); err == nil {
			continue
		}
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(int(f.Fd()), &st))
		total += st.Blocks * 512
	}
	return total
}

// TestTheNextAgentHasThePagesOfSlotsThatTrainersKeepMapped: of the slots that an agent leaves, only that of
// the last good part has memory, whoever has the others mapped.
func TestTheNextAgentHasThePagesOfSlotsThatTrainersKeepMapped(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	for step := uint64(1); step <= 3; step++ { // each while the one before is written or kept
		require.NoError(t, p.begin(step, 1<<20))
		require.NoError(t, p.seal(step, 1<<20))
		require.NoError(t, n.wait(step))
	}
	slots := n.keepSlots()
	require.NoError(t, n.stop())
	require.Zero(t, slots.bytes(t), "free slots")

	unsealed := filepath.Join(n.arena, "slot-0000000000000001")
	require.NoError(t, os.WriteFile(unsealed, make([]byte, 2<<20), 0o600))
	damaged := filepath.Join(n.arena, "slot-0000000000000002")
	require.NoError(t, os.WriteFile(damaged, make([]byte, 2<<20), 0o600))
	require.NoError(t, os.WriteFile(damaged+".json", []byte(`{"version":1,`), 0o600))
	slots = n.keepSlots()
	n.start(time.Minute)
	require.Len(t, n.states(), 1, "the last good part is there still")
	require.NoFileExists(t, unsealed)
	require.NoFileExists(t, damaged)
	require.Zero(t, slots.bytes(t))
	require.Equal(t, int64(2<<20), n.used())
}

// TestATrainerMapsNoSlotOfAnAgentThatHasGone: at the next agent it has the slot of its part mapped alone, and a
// copy that was under way does no harm.
func TestATrainerMapsNoSlotOfAnAgentThatHasGone(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	for step := uint64(1); step <= 3; step++ {
		tr.save(step, 0)
		n.requireStep(step, 1)
	}
	part, err := tr.run.Begin(t.Context(), 4, ckpt.BeginOptions{Bytes: partBytes})
	require.NoError(t, err)
	buffer, err := part.Buffer(1000)
	require.NoError(t, err)
	require.NoError(t, n.stop())
	require.NotZero(t, slotsMapped(t, n.arena))

	n.wrap = holdSeals // no part of the old agent gives way
	n.start(0)
	require.Error(t, part.Seal(t.Context()))
	tr.save(5, 0)
	require.Zero(t, slotsMapped(t, n.arena))
	buffer[999] = 1
	require.ErrorContains(t, n.stop(), "step 5")
}

// slotsMapped counts the mappings of slots whose files are gone.
func slotsMapped(t *testing.T, arena string) (count int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, arena) && strings.Contains(line, "(deleted)") {
			count++
		}
	}
	return count
}

// TestAPartThatIsNotSealedLeavesNoPages: also where the trainer keeps its slot mapped after its connection has
// ended. A file that is written through the agent leaves none either.
func TestAPartThatIsNotSealedLeavesNoPages(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(0)
	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, 1<<20))
	f := n.stranger()
	require.NoError(t, f.ask(&agentproto.Request{Create: &fileproto.Create{Path: "/f", Bytes: 1 << 20}}))
	slots := n.keepSlots()
	require.Len(t, slots, 2)
	require.NoError(t, p.conn.Close())
	require.NoError(t, f.ask(&agentproto.Request{Commit: &fileproto.Commit{}}))
	n.eventually(func() bool { return n.used() == 0 })
	require.Zero(t, slots.bytes(t))
}
