package metadata_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// force stops all servers and makes one of them continue alone; the caller starts it. It returns
// the others.
func (g *growable) force(left string) (others []string) {
	g.t.Helper()
	for _, name := range slices.Clone(g.names) {
		g.stop(name)
		if name != left {
			others = append(others, name)
		}
	}
	known, err := metadata.KnownIn(g.disk[left], "/node")
	require.NoError(g.t, err)
	next, err := metadata.NextIncarnation(known.Incarnation, rand.Reader)
	require.NoError(g.t, err)
	_, err = raftstore.ForceAlone(g.raftConfig(left), raftstore.Deps{FS: g.disk[left]}, next)
	require.NoError(g.t, err)
	after, err := metadata.KnownIn(g.disk[left], "/node")
	require.NoError(g.t, err)
	require.Equal(g.t, next.Incarnation.Number, after.Incarnation, "what was forced is known before a server has run")
	return others
}

// Two outlived servers run again on their old --data and lead each other for a while. They stop
// when they meet the remaining one, and clients that had met it do not return to them.
func TestServersOfAnOldIncarnationEnd(t *testing.T) {
	g := newGrowable(t)
	g.votersBecome("m1", "m2", "m3")
	old := g.force("m1")
	for _, name := range old {
		g.mayEnd(name)
		g.start(name)
	}
	g.names = old
	g.user.at = g.leader()
	_, err := g.user.mutate(mkdir(root, "given-up"))
	require.NoError(t, err, "for want of anybody who knows better")

	g.names = []string{"m1", "m2", "m3"}
	g.start("m1")
	for _, name := range old {
		err := g.refused(name)
		require.ErrorIs(t, err, moraine.Fenced)
		require.ErrorContains(t, err, "an empty --data")
		g.stop(name)
		g.start(name) // as its service manager does
		require.ErrorIs(t, g.refused(name), moraine.Fenced, "it knows without anybody to tell it")
		g.stop(name)
	}
	g.names = []string{"m1"}
	require.EqualValues(t, 2, g.insist(membersReq()).Incarnation)
	g.user.at = "m1"
	g.again()
	g.allThere()
	// A third one that arrives in another way learns it too.
	g.join("m4")
	g.insist(addReq("m4"))
	g.votersBecome("m1", "m4")
	id, err := raftstore.ReadIdentity(g.disk["m4"], "/node")
	require.NoError(t, err)
	first, err := raftstore.ReadIdentity(g.disk["m1"], "/node")
	require.NoError(t, err)
	require.Equal(t, first.Incarnation, id.Incarnation, "who is added is of the incarnation, with its mark")
	g.mkdirs(2)
	g.allThere()
}

// Chunkservers refuse a metadata server that was started with too low an incarnation, and it stops
// when most of them report that. A single one does not stop it.
func TestChunkserversThatHaveSeenMoreEndALeader(t *testing.T) {
	g := newGrowable(t)
	g.votersBecome("m1", "m2", "m3")
	lead := g.leader()
	g.mayEnd(lead)
	g.restart(lead)
	for g.leader() != lead {
		g.lead(lead)
	}
	tell := func(req *wire.MetaRequest) (*wire.MetaResponse, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return g.ops.Metadata([]string{memnet.Address(g.leader())}).Do(ctx, req)
	}
	for _, host := range []string{"n1", "n2", "n3"} {
		_, err := tell(&wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
			Host: &wire.Host{Id: host, Addresses: []string{host + ":1"}}}}})
		require.NoError(t, err)
	}
	beat := func(host string, heard uint64) error {
		_, err := tell(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{Host: host, SeenIncarnation: heard}}})
		return err
	}
	at := g.leader()
	g.mayEnd(at)
	require.NoError(t, beat("n1", 1))
	require.ErrorIs(t, beat("n1", 7), moraine.Unavailable)
	require.NoError(t, beat("n2", 1), "one of three may be wrong")
	require.NoError(t, beat("n3", 0))
	require.Equal(t, at, g.leader())
	if at == lead {
		require.ErrorIs(t, beat("n2", 7), moraine.Unavailable)
		err := g.refused(lead)
		require.ErrorIs(t, err, moraine.Fenced)
		require.ErrorContains(t, err, "--after-incarnation 7")
	}
}

// Two servers of a new cluster lead before the third has entered, and one of them is lost. The
// third enters and leads with the other.
func TestTheThirdServerEntersWithoutTheFirst(t *testing.T) {
	disk := map[string]vfs.FS{}
	for i, name := range []string{"m1", "m2", "m3"} {
		disk[name] = vfs.NewMem(uint64(i))
	}
	var fails atomic.Bool
	fails.Store(true)
	plain := disk["m3"]
	admitted := func() bool {
		id, err := raftstore.ReadIdentity(plain, "/node")
		return err == nil && id.Admitted
	}
	entered := func(name string) bool {
		id, err := raftstore.ReadIdentity(disk[name], "/node")
		return err == nil && id.Entered
	}
	no := errors.New("no")
	disk["m3"] = vfs.NewFault(plain, func(op vfs.Op) error {
		// It is admitted and stops before it has entered, but after the others have.
		if fails.Load() && op.Kind == vfs.OpRename && strings.HasSuffix(op.Path, "IDENTITY.new") && admitted() {
			for !entered("m1") || !entered("m2") {
				time.Sleep(10 * time.Millisecond)
			}
			return no
		}
		return nil
	})
	g := &growable{disk: disk}
	g.raftCluster = &raftCluster{t: t, net: memnet.New(1), disks: func(name string) (vfs.FS, string) { return g.disk[name], "/node" },
		servers: map[string]*metadata.Server{}, stops: map[string]func(){}, joins: map[string]bool{}, ends: map[string]chan error{},
		names: []string{"m1", "m2", "m3"}}
	t.Cleanup(func() {
		for _, name := range g.names {
			g.stop(name)
		}
		g.net.Wait()
	})
	g.mayEnd("m3")
	for _, name := range g.names {
		require.NoError(t, raftstore.Bootstrap(g.raftConfig(name), raftstore.Deps{FS: g.disk[name]}))
		g.start(name)
	}
	require.ErrorIs(t, g.refused("m3"), no)
	g.stop("m3")
	first := g.leader()
	require.NotEqual(t, "m3", first)
	g.user = g.caller("c1")
	g.user.open()
	g.mkdirs(3)
	g.stop(first)
	fails.Store(false)
	delete(g.ends, "m3")
	g.start("m3")
	g.user.at = g.leader()
	g.mkdirs(3)
	g.allThere()
}
