package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestFailoverLosesNothing kills the metadata leader repeatedly under load. Every
// acknowledged operation is there afterwards, and none took effect twice. Creates
// are exclusive and renames move a name that exists once, so a second execution
// would fail with Exists or NotFound.
func TestFailoverLosesNothing(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 1})
	loseLeaders(t, c, (*devcluster.Node).Kill, (*devcluster.Node).Start)
}

// TestFailoverOfAHostThatVanishes is the same for a leader that runs on while its
// host is cut off the network: no connection breaks, and no caller is refused.
func TestFailoverOfAHostThatVanishes(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: -1, OwnHosts: true})
	loseLeaders(t, c, (*devcluster.Node).Vanish, (*devcluster.Node).Appear)
}

// loseLeaders stops the leader repeatedly while clients create and rename, and
// compares their answers with the result.
func loseLeaders(t *testing.T, c *devcluster.Cluster, lose, back func(*devcluster.Node) error) {
	t.Helper()
	const clients = 8
	var acked atomic.Int64
	stop := make(chan struct{})
	made := make([]int, clients)
	dirs := make([]moraine.InodeID, clients)
	sessions := make([]*client.Client, clients)
	for i := range clients {
		sessions[i] = connect(t, c, client.Config{})
		attr, err := sessions[i].Mkdir(t.Context(), fmt.Sprintf("/client-%d", i), 0o755)
		require.NoError(t, err)
		dirs[i] = attr.Inode()
	}
	var g sync.WaitGroup
	errs := make([]error, clients)
	for i := range clients {
		g.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if errs[i] = createAndRename(t.Context(), sessions[i], dirs[i], n); errs[i] != nil {
					return
				}
				made[i] = n + 1
				acked.Add(1)
			}
		})
	}
	var gaps []time.Duration
	for round := range rounds(2, 10) {
		waitFor(t, &acked, acked.Load()+50)
		leader := leaderOf(t, sessions[0])
		node := c.Node(leader)
		lost := time.Now()
		require.NoError(t, lose(node))
		waitFor(t, &acked, acked.Load()+clients+1) // some may have been acknowledged before that
		gaps = append(gaps, time.Since(lost))
		next := leaderOf(t, sessions[0])
		t.Logf("leader %d, %s, is lost: operations go on after %v, by %s", round+1, leader, gaps[round].Round(time.Millisecond), next)
		require.NotEqual(t, leader, next)
		require.NoError(t, back(node))
		require.NoError(t, node.Ready(t.Context()))
	}
	close(stop)
	g.Wait()
	slices.Sort(gaps)
	t.Logf("%d leaders lost, %d operations acknowledged, median until service %v, worst %v", len(gaps), 2*acked.Load(), gaps[len(gaps)/2], gaps[len(gaps)-1])
	for i := range clients {
		require.NoError(t, errs[i], "client %d after %d files", i, made[i])
		checkNames(t, sessions[i], fmt.Sprintf("/client-%d", i), made[i])
	}
}

// createAndRename makes a file under one name and moves it to another.
func createAndRename(ctx context.Context, c *client.Client, dir moraine.InodeID, n int) error {
	before, after := fmt.Sprintf("new-%06d", n), fmt.Sprintf("file-%06d", n)
	if _, err := c.Inodes().CreateEmpty(ctx, dir, before, 0o644); err != nil {
		return err
	}
	_, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{
		Parent: uint64(dir), Name: before, NewParent: uint64(dir), NewName: after, NoReplace: true}}})
	return err
}

func checkNames(t *testing.T, c *client.Client, dir string, n int) {
	t.Helper()
	var names []string
	for e, err := range c.ReadDir(t.Context(), dir) {
		require.NoError(t, err)
		names = append(names, e.Name)
	}
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("file-%06d", i))
	}
	require.Equal(t, want, names, dir)
}

// waitFor waits until the counter has reached n.
func waitFor(t *testing.T, counter *atomic.Int64, n int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); counter.Load() < n; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "no operation was acknowledged for a minute")
	}
}

// leaderOf returns the leader.
func leaderOf(t *testing.T, c *client.Client) string {
	t.Helper()
	resp, err := rawclient.Of(c).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(t, err)
	for _, m := range resp.GetCluster().GetMetadata() {
		if m.Leader {
			return m.Id
		}
	}
	t.Fatal("no metadata server leads")
	return ""
}
