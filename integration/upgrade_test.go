package integration_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestRollingUpgrade upgrades a cluster to the next build, which has commands that
// the first does not know, server by server, while files are made. The level is not
// raised before all metadata servers support it. No new command is proposed before
// that, since the voting servers of the old build would stop. After it the new
// commands are used, and a server of the old build stops and logs why.
func TestRollingUpgrade(t *testing.T) {
	old, next := builtWith(t, "moraine_level2"), builtWith(t, "")
	c := startOf(t, old, devcluster.Config{Chunkservers: 1})
	cl := connect(t, c, client.Config{})
	stop, made := make(chan struct{}), atomic.Int64{}
	var g sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); g.Wait() })
	defer end()
	_, err := cl.Mkdir(t.Context(), "/d", 0o755)
	require.NoError(t, err)
	root, err := cl.Stat(t.Context(), "/d")
	require.NoError(t, err)
	var failed error
	g.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if failed = createAndRename(t.Context(), cl, moraine.InodeID(root.Inode), int(made.Load())); failed != nil {
				return
			}
			made.Add(1)
		}
	})
	upgrade := func(args ...string) map[string]any {
		t.Helper()
		return objects(t, works(t, settingsFor(c), append([]string{"cluster", "upgrade", "--json"}, args...)...))[0]
	}
	require.EqualValues(t, 2, upgrade()["feature_level"])
	// finish requests the new level until the answer is as wanted: a new leader
	// does not know yet what the others support, and says that.
	finish := func(so func(outcome) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
			o := invoke(t, settingsFor(c), "cluster", "upgrade", "--finish")
			if so(o) {
				return
			}
			require.True(t, time.Now().Before(end), "%d: %s", o.code, o.stderr)
		}
	}

	restart := func(n *devcluster.Node) {
		t.Helper()
		require.NoError(t, n.Stop(time.Minute))
		n.Use(next)
		require.NoError(t, n.Start())
		require.NoError(t, n.Ready(t.Context()))
		waitFor(t, &made, made.Load()+5)
	}
	restart(c.Node("n1"))
	lead := leaderOf(t, cl)
	order := []*devcluster.Node{}
	for _, n := range c.Nodes(devcluster.Metadata) {
		if n.Name != lead {
			order = append(order, n)
		}
	}
	for _, n := range append(order, c.Node(lead)) {
		if n == order[0] {
			invoke(t, settingsFor(c), "cluster", "upgrade", "--finish") // there is no higher level
		} else { // some support the new level, but not all
			finish(func(o outcome) bool {
				require.NotZero(t, o.code)
				return strings.Contains(o.stderr, lead+" speaks 2")
			})
		}
		require.EqualValues(t, 2, upgrade()["feature_level"])
		restart(n)
		awaitLevels(t, upgrade, 1)
	}
	awaitLevels(t, upgrade, moraine.FeatureLevel)
	for _, n := range c.Nodes(devcluster.Metadata) {
		require.NotContains(t, n.Log(), "does not know", "%s met a command of the new build before the upgrade was finished", n.Name)
	}
	o := invoke(t, settingsFor(c), "quota", "set", "moraine:///d", "--inodes", "1000000")
	require.NotZero(t, o.code)
	require.Contains(t, o.stderr, "finish the upgrade first")
	finish(func(o outcome) bool { return o.code == 0 })
	require.EqualValues(t, moraine.FeatureLevel, upgrade()["feature_level"])
	waitFor(t, &made, made.Load()+20)
	works(t, settingsFor(c), "quota", "set", "moraine:///d", "--inodes", "1000000")
	// The command that the old build does not know is in the log: the directories
	// of the servers are recorded.
	awaitSeats(t, c)
	n := c.Node(lead)
	require.NoError(t, n.Stop(time.Minute))
	n.Use(old)
	require.NoError(t, n.Start())
	select {
	case <-n.Exited():
	case <-time.After(time.Minute):
		t.Fatal("a build of level 2 runs in a cluster of a newer one")
	}
	require.Contains(t, n.LogTail(1), "feature level", "the leader, or its own state, reports it")
	waitFor(t, &made, made.Load()+5)
	n.Use(next)
	require.NoError(t, n.Start())
	require.NoError(t, n.Ready(t.Context()))
	end()
	require.NoError(t, failed)
	checkNames(t, cl, "/d", int(made.Load()))
}

// builtWith builds the executable with build tags.
func builtWith(t *testing.T, tags string) string {
	t.Helper()
	if tags == "" {
		path, err := binary()
		require.NoError(t, err)
		return path
	}
	path := filepath.Join(t.TempDir(), tags)
	require.NoError(t, devcluster.Build(t.Context(), path, tags))
	return path
}

// startOf is startProcs with an executable of its own.
func startOf(t *testing.T, path string, cfg devcluster.Config) *devcluster.Cluster {
	t.Helper()
	cfg.Binary, cfg.Dir = path, filepath.Join(t.TempDir(), "cluster")
	c, err := devcluster.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.All() {
				t.Logf("%s:\n%s", n.Name, n.LogTail(8))
			}
		}
		_ = c.Close()
	})
	return c
}

// TestOldBuildStopsAtAnUnknownCommand makes a leader do what no build does: it
// proposes a new command before the upgrade is finished. The servers of the old
// build stop and name it, and stop again after a restart, rather than continue
// without it. The new build replaces them with their --data, and all agree.
func TestOldBuildStopsAtAnUnknownCommand(t *testing.T) {
	old, next, eager := builtWith(t, "moraine_level2"), builtWith(t, ""), builtWith(t, "moraine_eager")
	c := startOf(t, old, devcluster.Config{Chunkservers: -1})
	cl := connect(t, c, client.Config{})
	attr, err := cl.Mkdir(t.Context(), "/d", 0o755)
	require.NoError(t, err)
	m1 := c.Node("m1")
	restart := func(n *devcluster.Node) {
		t.Helper()
		require.NoError(t, n.Stop(time.Minute))
		require.NoError(t, n.Start())
		require.NoError(t, n.Ready(t.Context()))
	}
	m1.Use(eager)
	restart(m1)
	for end := time.Now().Add(2 * time.Minute); leaderOf(t, cl) != "m1"; {
		require.True(t, time.Now().Before(end), "m1 does not come to lead")
		restart(c.Node(leaderOf(t, cl)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = cl.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: attr.Inode, Inodes: 1_000_000}}})
	t.Logf("the quota is answered with: %v", err) // or not, as the majority ends
	olds := []*devcluster.Node{c.Node("m2"), c.Node("m3")}
	stops := func() {
		t.Helper()
		for _, n := range olds {
			select {
			case <-n.Exited():
			case <-time.After(time.Minute):
				t.Fatalf("%s of the old build goes on past a command that it does not know", n.Name)
			}
			last := n.LogTail(1)
			t.Logf("%s: %s", n.Name, last)
			require.Contains(t, last, "command that this build does not know")
			require.Contains(t, last, "SetQuota")
			require.Contains(t, last, "or a later one", "it says what to do")
		}
	}
	stops()
	for _, n := range olds {
		require.NoError(t, n.Start())
	}
	stops()
	for _, n := range append(olds, m1) {
		require.NoError(t, n.Stop(time.Minute)) // m1 may run
		n.Use(next)
		require.NoError(t, n.Start())
	}
	for _, n := range c.Nodes(devcluster.Metadata) {
		require.NoError(t, n.Ready(t.Context()))
	}
	_, err = cl.Mkdir(t.Context(), "/e", 0o755)
	require.NoError(t, err)
	works(t, settingsFor(c), "mkdir", "moraine:///f")
	for _, n := range c.Nodes(devcluster.Metadata) {
		require.True(t, n.Running(), n.Name)
	}
}

// awaitLevels waits until every metadata server has reported its level, and all
// support level least.
func awaitLevels(t *testing.T, upgrade func(...string) map[string]any, least float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for upgrade()["can_be_raised_to"].(float64) < least {
		require.NoError(t, ctx.Err(), "a server does not say its level: %v", fmt.Sprint(upgrade()))
		time.Sleep(200 * time.Millisecond)
	}
}
