package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

// A server with one of these flags acts as one of a later release, which has one more feature level
// and one more request (state.NewFuture). With hasty, its leader proposes the request below that level.
const (
	later = "--imitate=later-release"
	hasty = "--imitate=hasty-later-release"
)

// toucher returns a function that sends the leader the request that only a later release knows. It
// sets the time of an inode.
func toucher(t *testing.T, c *devcluster.Cluster) func(ctx context.Context, inode uint64) error {
	t.Helper()
	id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "admin"))
	require.NoError(t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(c.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	return func(ctx context.Context, inode uint64) error {
		req, err := state.FutureRequest(&wire.SetAttr{Inode: inode, Valid: uint32(wire.SetAttrField_SET_ATTR_MTIME), Mtime: 1})
		if err != nil {
			return err
		}
		for {
			for _, n := range c.Nodes(devcluster.Metadata) {
				_, err = pool.Metadata([]string{n.Address}).Do(ctx, proto.CloneOf(req))
				if k := moraine.KindOf(err); k != moraine.NotLeader && k != moraine.Unavailable {
					return err
				}
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond): // an election is under way
			}
		}
	}
}

// TestRollingUpgrade upgrades a cluster to a later release, which has a request that
// the first does not know, server by server, while files are made. The level is not
// raised before all metadata servers support it. The new request is not proposed before
// that, since the voting servers of the old build would stop. After it the new
// request is used, and a server of the old build stops and logs why.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 1})
	touch := toucher(t, c)
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
			if failed = createAndRename(t.Context(), cl, root.Inode(), int(made.Load())); failed != nil {
				return
			}
			made.Add(1)
		}
	})
	upgrade := func(args ...string) map[string]any {
		t.Helper()
		return objects(t, works(t, settingsFor(c), append([]string{"cluster", "upgrade", "--json"}, args...)...))[0]
	}
	require.EqualValues(t, moraine.FeatureLevel, upgrade()["feature_level"])
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

	restart := func(n *devcluster.Node, flags ...string) {
		t.Helper()
		require.NoError(t, n.Stop(time.Minute))
		n.SetFlags(flags...)
		require.NoError(t, n.Start())
		require.NoError(t, n.Ready(t.Context()))
		waitFor(t, &made, made.Load()+5)
	}
	restart(c.Node("n1")) // chunkservers are upgraded first
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
				return strings.Contains(o.stderr, fmt.Sprintf("%s speaks %d", lead, moraine.FeatureLevel))
			})
		}
		require.ErrorIs(t, touch(t.Context(), uint64(root.Inode())), moraine.Unimplemented, "led by %s", leaderOf(t, cl))
		require.EqualValues(t, moraine.FeatureLevel, upgrade()["feature_level"])
		restart(n, later)
		awaitLevels(t, upgrade, 1)
	}
	awaitLevels(t, upgrade, state.FutureLevel)
	for _, n := range c.Nodes(devcluster.Metadata) {
		require.NotContains(t, n.Log(), "the log has a command that this build does not know", "%s met a command of the new build before the upgrade was finished", n.Name)
	}
	require.ErrorContains(t, touch(t.Context(), uint64(root.Inode())), "finish the upgrade first")
	finish(func(o outcome) bool { return o.code == 0 })
	require.EqualValues(t, state.FutureLevel, upgrade()["feature_level"])
	waitFor(t, &made, made.Load()+20)
	require.NoError(t, touch(t.Context(), uint64(root.Inode())), "the request that the old build does not know")
	n := c.Node(lead)
	require.NoError(t, n.Stop(time.Minute))
	n.SetFlags() // the old build again
	require.NoError(t, n.Start())
	select {
	case <-n.Exited():
	case <-time.After(time.Minute):
		t.Fatal("a server of the old build runs in a cluster of a later one")
	}
	require.Contains(t, n.LogTail(1), "feature level", "the leader, or its own state, reports it")
	waitFor(t, &made, made.Load()+5)
	n.SetFlags(later)
	require.NoError(t, n.Start())
	require.NoError(t, n.Ready(t.Context()))
	end()
	require.NoError(t, failed)
	checkNames(t, cl, "/d", int(made.Load()))
}

// TestOldBuildStopsAtAnUnknownCommand makes a leader do what no build does: it
// proposes a new request before the upgrade is finished. The servers of the old
// build stop and name it, and stop again after a restart, rather than continue
// without it. The new build replaces them with their --data, and all agree.
func TestOldBuildStopsAtAnUnknownCommand(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: -1})
	touch := toucher(t, c)
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
	m1.SetFlags(hasty)
	restart(m1)
	for end := time.Now().Add(2 * time.Minute); leaderOf(t, cl) != "m1"; {
		require.True(t, time.Now().Before(end), "m1 does not come to lead")
		restart(c.Node(leaderOf(t, cl)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	t.Logf("the request is answered with: %v", touch(ctx, uint64(attr.Inode()))) // or not, as the majority ends
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
			require.Contains(t, last, fmt.Sprintf("field %d of MetaRequest", state.FutureField))
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
		n.SetFlags(later)
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
