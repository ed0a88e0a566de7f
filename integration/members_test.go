package integration_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// adminRun runs the binary against the cluster as an administrator, and returns its
// output.
func adminRun(t *testing.T, c *devcluster.Cluster, endpoint string, args ...string) (string, error) {
	t.Helper()
	out, err := command(t, nil, append(args, "--endpoint", endpoint, "--certs", c.Certs(), "--identity", "admin", "--mode", c.Mode())...).CombinedOutput()
	t.Logf("moraine %s\n%s", strings.Join(args, " "), out)
	return string(out), err
}

// awaitSeats waits until the state knows the directory of every metadata server of c.
func awaitSeats(t *testing.T, c *devcluster.Cluster) {
	t.Helper()
	ops := connect(t, c, client.Config{})
	want := len(c.Nodes(devcluster.Metadata))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for seated := 0; ; time.Sleep(50 * time.Millisecond) {
		resp, err := rawclient.Of(ops).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetMembers{GetMembers: &wire.GetMembers{}}})
		require.NoError(t, err, "the directories of %d of %d servers are recorded", seated, want)
		seated = 0
		for _, m := range resp.GetMembers().GetMembers() {
			if m.GetSeated() {
				seated++
			}
		}
		if seated == want {
			return
		}
	}
}

// connectVia opens a client that gets the address of one metadata server only.
func connectVia(t *testing.T, c *devcluster.Cluster, address string) *client.Client {
	t.Helper()
	id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "client"))
	require.NoError(t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(c.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	cl, err := client.Dial(t.Context(), client.Config{Metadata: [][]string{{address}}}, client.Deps{Dialer: pool})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cl.Close(); _ = pool.Close() })
	return cl
}

// All three metadata servers of a cluster are replaced one after the other, while
// it is used. A client that got the address of one server at its start, and the
// chunkservers that got those of the first three, follow. A server that lost its
// disk does not return under its old id.
func TestAllMetadataServersAreReplaced(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 1})
	cl := connectVia(t, c, c.Node("m2").Address)
	made := 0
	mkdir := func() {
		t.Helper()
		_, err := cl.Mkdir(t.Context(), fmt.Sprintf("/d%03d", made), 0o755)
		require.NoError(t, err)
		made++
	}
	mkdir()
	awaitSeats(t, c)

	wiped := c.Node("m3")
	require.NoError(t, wiped.Kill())
	require.NoError(t, os.RemoveAll(filepath.Join(wiped.Dir, "data")))
	require.NoError(t, wiped.Start()) // with --bootstrap, as at the first start
	select {
	case <-wiped.Exited():
	case <-time.After(time.Minute):
		t.Fatal("a server without its disk goes on under its old id")
	}
	require.Contains(t, wiped.LogTail(1), "moraine metadata replace m3")
	mkdir()

	endpoint := c.Node("m1").Address
	for i, old := range []string{"m3", "m1", "m2"} {
		name := fmt.Sprintf("m%d", i+4)
		via := []string{"m1", "m2", "m4"}[i]
		n, err := c.AddMetadata(name, via)
		require.NoError(t, err)
		out, err := adminRun(t, c, endpoint, "metadata", "replace", old, name+"="+n.Address)
		require.NoError(t, err)
		require.Contains(t, out, name+" votes")
		require.Contains(t, out, old+" is removed")
		require.NoError(t, n.Ready(t.Context()))
		mkdir()
		if old != "m3" {
			requireRemoved(t, c.Node(old))
		}
		endpoint = n.Address
		_, err = adminRun(t, c, endpoint, "metadata", "replace", old, name+"="+n.Address)
		require.NoError(t, err, "a replacement that is done may be given again")
	}
	out, err := adminRun(t, c, endpoint, "metadata", "ls", "--json")
	require.NoError(t, err)
	rows := objects(t, out)
	require.Len(t, rows, 3)
	for i, row := range rows {
		require.Equal(t, fmt.Sprintf("m%d", i+4), row["id"])
		require.Equal(t, true, row["alive"])
	}
	names := 0
	for _, err := range cl.ReadDir(t.Context(), "/") {
		require.NoError(t, err)
		names++
	}
	require.Equal(t, made, names)
	_, err = adminRun(t, c, endpoint, "cluster", "status", "--wait", "30s")
	require.NoError(t, err, "the chunkserver, which started with the first three, found the others")
	addAndRemove(t, c, endpoint)
}

// awaitMembers waits until the metadata servers are as wanted, by id.
func awaitMembers(t *testing.T, c *devcluster.Cluster, endpoint string, wanted func(rows map[string]map[string]any) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		rows := map[string]map[string]any{}
		out, err := adminRun(t, c, endpoint, "metadata", "ls", "--json")
		if err == nil { // otherwise there is no leader at the moment
			for _, row := range objects(t, out) {
				rows[row["id"].(string)] = row
			}
			if wanted(rows) {
				return
			}
		}
		require.True(t, time.Now().Before(deadline), "%s", out)
	}
}

// refusedTo runs an administrator's command that is refused, with these words.
func refusedTo(t *testing.T, c *devcluster.Cluster, endpoint string, args []string, words ...string) {
	t.Helper()
	out, err := adminRun(t, c, endpoint, args...)
	require.Error(t, err)
	for _, w := range words {
		require.Contains(t, out, w)
	}
}

// addAndRemove adds a fourth server to a cluster of m4 to m6, and removes it again.
// Then one is killed, and no other can be removed, since the rest would have no
// quorum.
func addAndRemove(t *testing.T, c *devcluster.Cluster, endpoint string) {
	t.Helper()
	n, err := c.AddMetadata("m7", "m6")
	require.NoError(t, err)
	awaitMembers(t, c, endpoint, func(rows map[string]map[string]any) bool { return rows["m7"]["role"] == "waiting" })
	add := []string{"metadata", "add", "m7=" + n.Address}
	for range 2 { // the second run is like one after a lost answer
		out, err := adminRun(t, c, endpoint, add...)
		require.NoError(t, err)
		require.Contains(t, out, "m7 votes")
	}
	require.NoError(t, n.Ready(t.Context()))
	awaitMembers(t, c, endpoint, func(rows map[string]map[string]any) bool { return len(rows) == 4 && rows["m7"]["role"] == "voter" })
	refusedTo(t, c, endpoint, []string{"metadata", "add", "m7=127.0.0.1:1"}, "the server is a member at "+n.Address)

	for range 2 {
		out, err := adminRun(t, c, endpoint, "metadata", "remove", "m7")
		require.NoError(t, err)
		require.Contains(t, out, "m7 is removed; 3 servers are left")
		require.Contains(t, out, "1 of 3 may be away or lost at once now")
	}
	requireRemoved(t, n)
	refusedTo(t, c, endpoint, add, "which belongs to its --data directory for ever")
	refusedTo(t, c, endpoint, []string{"metadata", "remove", "m8"}, "no such server")

	require.NoError(t, c.Node("m4").Kill())
	endpoint = c.Node("m5").Address + "," + c.Node("m6").Address
	awaitMembers(t, c, endpoint, func(rows map[string]map[string]any) bool {
		return rows["m4"]["alive"] == false && rows["m5"]["alive"] == true && rows["m6"]["alive"] == true
	})
	for _, id := range []string{"m5", "m6"} {
		refusedTo(t, c, endpoint, []string{"metadata", "remove", id}, "only 1 of the 2 remaining servers answer", "start m4")
	}
	out, err := adminRun(t, c, endpoint, "metadata", "remove", "m4")
	require.NoError(t, err)
	require.Contains(t, out, "none may be away now")
	awaitMembers(t, c, endpoint, func(rows map[string]map[string]any) bool { return len(rows) == 2 && rows["m4"] == nil })
}

// requireRemoved waits until a removed server has ended, and logged why.
func requireRemoved(t *testing.T, n *devcluster.Node) {
	t.Helper()
	select {
	case <-n.Exited():
	case <-time.After(time.Minute):
		t.Fatalf("%s was removed and goes on", n.Name)
	}
	require.Contains(t, n.LogTail(1), "was removed from the cluster")
}
