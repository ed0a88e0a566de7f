package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// diskDir returns a directory that is not in memory, where an agent may mount.
func diskDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "moraine-agent-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &fs))
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skip("/var/tmp is in memory here")
	}
	return dir
}

// mountedOn returns the options of the tmpfs on dir; empty if none is mounted.
func mountedOn(t *testing.T, dir string) string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); f[1] == dir && f[2] == "tmpfs" {
			return f[3]
		}
	}
	return ""
}

// TestTheAgentMountsItsArenas: an agent that may mount gives its arenas a tmpfs of their own, with
// the size of its limit, and the next agent finds it. It hides no files.
func TestTheAgentMountsItsArenas(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := diskDir(t)
	arena := filepath.Join(dir, "arena")
	n := newNode(t, 8<<20)
	n.arena = arena
	t.Cleanup(func() {
		if n.stop != nil {
			_ = n.stop()
		}
		_ = unix.Unmount(arena, unix.MNT_DETACH) // also where the test has failed
	})
	n.start(0)
	options := mountedOn(t, arena)
	require.Contains(t, options, "mode=700")
	require.Contains(t, options, "nosuid")
	p := n.peer(runPath, "one", 2)
	require.NoError(t, p.begin(1, 4<<20))
	require.NoError(t, p.seal(1, 1<<20)) // rank 1 never does
	require.ErrorIs(t, n.stop(), moraine.Incomplete)
	require.NotEmpty(t, mountedOn(t, arena), "the mount stays")

	n.memory = 64 << 20
	n.start(0)
	require.Equal(t, map[uint64]string{1: agentproto.Local}, n.states(), "the part is there")
	require.NotEqual(t, options, mountedOn(t, arena), "the tmpfs has grown with --arena-memory")
	p = n.peer(runPath, "one", 2)
	require.NoError(t, p.begin(2, 40<<20))
	require.NoError(t, p.ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 2}}))
	require.ErrorIs(t, n.stop(), moraine.Incomplete)

	full := filepath.Join(dir, "full")
	require.NoError(t, os.Mkdir(full, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o600))
	_, err := agent.New(agent.Config{Socket: n.socket() + "2", Dir: full, Memory: 8 << 20}, agent.Deps{})
	require.ErrorContains(t, err, "it has files")
	require.Empty(t, mountedOn(t, full))
}

// TestArenasOnADisk: only with OnDisk does an agent use a disk, and after a start of the node it
// believes no part that it finds there: its bytes may not have been written.
func TestArenasOnADisk(t *testing.T) {
	dir := diskDir(t)
	arena := filepath.Join(dir, "arena")
	require.NoError(t, os.Mkdir(arena, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(arena, "lock"), nil, 0o600))
	n := newNode(t, 8<<20)
	_, err := agent.New(agent.Config{Socket: n.socket() + "2", Dir: arena, Memory: 8 << 20}, agent.Deps{})
	require.ErrorContains(t, err, "--arena-on-disk")
	n.arena, n.config.OnDisk = arena, true
	n.start(0)
	p := n.peer(runPath, "one", 2)
	require.NoError(t, p.begin(1, 4<<20))
	require.NoError(t, p.seal(1, 1<<20))
	require.ErrorIs(t, n.stop(), moraine.Incomplete)
	n.start(0)
	require.Equal(t, map[uint64]string{1: agentproto.Local}, n.states(), "the node has not started again")
	require.ErrorIs(t, n.stop(), moraine.Incomplete)
	require.NoError(t, os.WriteFile(filepath.Join(arena, "boot"), []byte("an earlier start"), 0o600))
	n.start(0)
	require.Empty(t, n.states())
	require.NoError(t, n.stop())
}

// TestSlotsAreMadeInAdvance: a rank that says at open how large its parts are finds its slots made
// when it saves, and keeps getting the same memory: its mappings stay good. What others need is not
// taken for that.
func TestSlotsAreMadeInAdvance(t *testing.T) {
	n := newNode(t, 24<<20)
	n.config.Prefault = 2
	n.start(time.Minute)
	p := n.stranger()
	require.NoError(t, p.ask(&agentproto.Request{Open: &agentproto.Open{Run: runPath, World: 1, Launch: "one", Bytes: 4 << 20}}))
	require.Len(t, n.slots(), 2)
	made := map[string]bool{}
	for _, s := range n.slots() {
		made[filepath.Base(s)] = true
	}
	other := n.stranger()
	require.NoError(t, other.ask(&agentproto.Request{Open: &agentproto.Open{Run: "/runs/b", World: 1, Launch: "one", Bytes: 6 << 20}}))
	require.Equal(t, int64(20<<20), n.used())
	for step := uint64(1); step <= 6; step++ {
		reply, files, err := p.conn.Exchange(t.Context(), &agentproto.Request{Begin: &agentproto.Begin{Step: step, Bytes: 4 << 20}})
		require.NoError(t, err)
		for _, f := range files {
			require.NoError(t, f.Close())
		}
		require.True(t, made[reply.Begin.Slot], "step %d got another slot", step)
		require.NoError(t, p.seal(step, 4<<20))
		require.NoError(t, n.wait(step))
		n.eventually(func() bool { return len(n.states()) == 1 })
	}
	require.NoError(t, other.begin(1, 6<<20))
}
