package raftstore_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// term returns the present term of a directory, or sets it.
func term(t *testing.T, fs vfs.FS, set uint64) uint64 {
	t.Helper()
	l, err := raftstore.OpenLog(fs, "/node")
	require.NoError(t, err)
	if set > 0 {
		require.NoError(t, l.SetUint64([]byte("CurrentTerm"), set))
	}
	now, err := l.GetUint64([]byte("CurrentTerm"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return now
}

// entries returns the entries of a log, by their index and term.
func entries(t testing.TB, fs vfs.FS) map[[2]uint64]string {
	t.Helper()
	out := map[[2]uint64]string{}
	require.NoError(t, raftstore.InspectLog(fs, "/node", func(e raftstore.EntryInfo) error {
		require.NoError(t, e.Damage)
		out[[2]uint64{e.Index, e.Term}] = e.Kind + " " + string(e.Data)
		return nil
	}))
	return out
}

// ends waits for a node to end, and returns the error.
func (g *group) ends(name string) error {
	g.t.Helper()
	select {
	case err := <-g.nodes[name].ended:
		delete(g.nodes, name)
		return err
	case <-time.After(30 * time.Second):
		g.t.Fatalf("%s goes on", name)
		return nil
	}
}

// lacks reports whether the log of a node lacks an entry of its last term; no node runs.
func (g *group) lacks(name string) bool {
	var last [2]uint64 // index and term
	for at := range entries(g.t, g.fs[name]) {
		if at[0] > last[0] {
			last = at
		}
	}
	for _, other := range g.names {
		for at := range entries(g.t, g.fs[other]) {
			if at[0] > last[0] && at[1] <= last[1] {
				return true
			}
		}
	}
	return false
}

// Two of three servers are outlived, and had advanced further than the third knew: their logs have
// other entries with the indexes and terms of what was forced on it. When they run again, no entry
// passes between them and it. They end, say what to do, and do not come back.
func TestServersThatWereDeclaredDeadEnd(t *testing.T) {
	t.Run("stopped in order", func(t *testing.T) { testServersThatWereGivenUpEnd(t, (*group).stopAll, "1") })
	// They never wrote out their state: only the log has their incarnation.
	t.Run("killed", func(t *testing.T) { testServersThatWereGivenUpEnd(t, (*group).cutPower, "") })
}

// testServersThatWereGivenUpEnd ends all servers by end, which leaves a state of incarnation
// `says`.
func testServersThatWereGivenUpEnd(t *testing.T, end func(*group), says string) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	g.propose("set incarnation 1")
	for range 5 {
		g.propose("add n")
	}
	end(g)
	// A leader may add an entry while they are stopped, one after the other, which m1 then
	// lacks; what is forced on it would come in a later term.
	for round := 0; round == 0 || g.lacks("m1"); round++ {
		g.startAll()
		g.propose(fmt.Sprintf("set all %d", round))
		eventually(t, "all have it", func() bool { return g.nodes["m1"].get("all") == fmt.Sprint(round) })
		end(g)
	}
	g.start("m2")
	g.start("m3")
	for i := range 6 {
		g.proposeAmong([]string{"m2", "m3"}, fmt.Sprintf("set old %d", i))
	}
	end(g)
	for _, name := range g.names {
		require.Equal(t, says, inState(t, g.fs[name], "incarnation"))
	}
	// The forced entry gets the index and the term of one of theirs.
	theirs := entries(t, g.fs["m2"])
	sv, err := raftstore.SurveyNode(g.config("m1"), raftstore.Deps{FS: g.fs["m1"]})
	require.NoError(t, err)
	next := uint64(1 << 60)
	for at := range theirs {
		if at[0] > sv.LastIndex {
			next = min(next, at[1])
		}
	}
	term(t, g.fs["m1"], next-1)
	_, err = raftstore.ForceAlone(g.config("m1"), raftstore.Deps{FS: g.fs["m1"]}, begin("set incarnation 2"))
	require.NoError(t, err)
	require.Equal(t, next, term(t, g.fs["m1"], 0))
	own := entries(t, g.fs["m1"])
	same := slices.ContainsFunc(slices.Collect(maps.Keys(own)), func(at [2]uint64) bool {
		return at[0] > sv.LastIndex && theirs[at] != "" && theirs[at] != own[at]
	})
	require.True(t, same, "entries of one index and term that differ: %v and %v", own, theirs)

	g.start("m2")
	g.start("m3")
	g.leader("m2", "m3")
	g.start("m1")
	for _, name := range []string{"m2", "m3"} {
		err := g.ends(name)
		require.ErrorIs(t, err, moraine.Fenced)
		require.ErrorContains(t, err, "incarnation 2")
		require.ErrorContains(t, err, "an empty --data")
	}
	require.EqualValues(t, 6, g.proposeAmong([]string{"m1"}, "add n"))
	require.Equal(t, "2", g.nodes["m1"].get("incarnation"))
	require.Empty(t, g.nodes["m1"].get("old"))
	require.NoError(t, g.halt("m1"))
	// Not even if no node can report it again.
	g.start("m2")
	require.ErrorIs(t, g.ends("m2"), moraine.Fenced)
	after := entries(t, g.fs["m2"])
	for at, entry := range theirs {
		require.Equal(t, entry, after[at], "what may be missed is still there")
	}
}

// A forced quorum stops after its entries and before IDENTITY, and the server is started
// nevertheless: the outlived servers cannot pass entries to it.
func TestAForcedQuorumThatWasCutShortKeepsApart(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	g.propose("set incarnation 1")
	// Two of the three commit it. The third, without the entry, would be a server whose cluster was
	// never made: it would keep to itself and not end.
	for _, name := range g.names {
		eventually(t, name+" has it", func() bool { return g.nodes[name].get("incarnation") == "1" })
	}
	g.stopAll()
	require.Equal(t, "1", inState(t, g.fs["m1"], "incarnation"))
	cut := vfs.NewFault(g.fs["m1"], func(op vfs.Op) error {
		if op.Kind == vfs.OpRename && strings.Contains(op.Path, "IDENTITY") {
			return syscall.EIO
		}
		return nil
	})
	_, err := raftstore.ForceAlone(g.config("m1"), raftstore.Deps{FS: cut}, begin("set incarnation 2"))
	require.ErrorIs(t, err, syscall.EIO)
	g.startAll()
	for _, name := range []string{"m2", "m3"} {
		require.ErrorIs(t, g.ends(name), moraine.Fenced)
	}
	g.proposeAmong([]string{"m1"}, "add n")
	require.Equal(t, "2", g.nodes["m1"].get("incarnation"))
}

// inState reads a key of the state on a disk; "" if there is none.
func inState(t *testing.T, fs vfs.FS, key string) (value string) {
	t.Helper()
	err := raftstore.InspectState(fs, "/node", func(r kvtx.Reader, _ uint64) error {
		p, _, err := r.Get([]byte(key))
		value = string(p)
		return err
	})
	if moraine.KindOf(err) != moraine.NotFound {
		require.NoError(t, err)
	}
	return value
}

// Two outlived servers were killed before their cluster was made: nothing in their directories has
// an incarnation. Their entries still reach nobody.
func TestServersOfAClusterThatWasNeverMadeKeepToThemselves(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	g.leader()
	g.cutPower()
	_, err := raftstore.ForceAlone(g.config("m1"), raftstore.Deps{FS: g.fs["m1"]}, begin("set incarnation 2"))
	require.NoError(t, err)
	g.startAll()
	for range 5 {
		g.proposeAmong([]string{"m1"}, "add n")
		g.proposeAmong([]string{"m2", "m3"}, "set old 1")
	}
	require.Equal(t, "2", g.nodes["m1"].get("incarnation"))
	require.Empty(t, g.nodes["m1"].get("old"))
	for _, name := range []string{"m2", "m3"} {
		require.Empty(t, g.nodes[name].get("n"))
	}
}

// Two incarnations begun under the same number stay separate, and neither ends the other.
func TestTheSameNumberTwiceKeepsApart(t *testing.T) {
	g := newGroup(t, 2, nil)
	g.bootstrap()
	g.startAll()
	g.propose("add n")
	g.stopAll()
	for i, name := range g.names {
		b := begin("set own " + name)
		b.Incarnation.Mark = moraine.UUID{byte(10 + i)}
		_, err := raftstore.ForceAlone(g.config(name), raftstore.Deps{FS: g.fs[name]}, b)
		require.NoError(t, err)
	}
	g.startAll()
	for _, name := range g.names {
		require.EqualValues(t, 2, g.proposeAmong([]string{name}, "add n"))
		// Like a leader that still has the other one as a member: it is refused.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = g.nodes[name].store.AddMember(ctx, g.names[1-slices.Index(g.names, name)], g.names[1-slices.Index(g.names, name)], false)
		cancel()
	}
	time.Sleep(500 * time.Millisecond) // for what must not come about
	for _, name := range g.names {
		require.Equal(t, name, g.nodes[name].get("own"))
	}
}

// Entries forced on a node that has just received a snapshot count, also if its state is ahead of
// the snapshot's index, and if the former log still exists.
func TestForceAloneAfterASnapshotWasReceived(t *testing.T) {
	one := newGroup(t, 1, nil)
	one.bootstrap()
	one.startAll()
	one.propose("set a before")
	const entries = 20
	for range entries {
		one.propose("add n")
	}
	p := backupOf(t, one.leader())
	info, err := raftstore.ReadBackup(bytes.NewReader(p), int64(len(p)))
	require.NoError(t, err)
	one.stopAll()
	for name, was := range map[string]struct {
		ahead      uint64 // of the snapshot's index, the state
		last, term uint64 // of the log that lies there
	}{
		"no log":                            {},
		"no log, the state is ahead":        {ahead: 5},
		"an older log":                      {last: 3, term: 1},
		"an older log, the state is ahead":  {ahead: 5, last: 3, term: 1},
		"another log":                       {last: info.Applied + 7, term: 1 << 20},
		"another log, the state is ahead":   {ahead: 5, last: info.Applied + 7, term: 1 << 20},
		"another log, not behind the state": {ahead: 5, last: info.Applied - 2, term: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, 3, nil)
			left := "m1"
			require.NoError(t, raftstore.InstallFrom(g.config(left), raftstore.Deps{FS: g.fs[left]}, bytes.NewReader(p), int64(len(p)), info.Applied-was.ahead, was.last, was.term))
			sv, err := raftstore.SurveyNode(g.config(left), raftstore.Deps{FS: g.fs[left]})
			require.NoError(t, err)
			require.Equal(t, info.Applied, sv.LastIndex)
			require.Equal(t, []string{"m1", "m2", "m3"}, sv.Members)
			_, err = raftstore.ForceAlone(g.config(left), raftstore.Deps{FS: g.fs[left]}, begin("set incarnation 2"))
			require.NoError(t, err)
			g.start(left)
			require.EqualValues(t, entries+1, g.proposeAmong([]string{left}, "add n"))
			require.Equal(t, "2", g.nodes[left].get("incarnation"), "the entry that was forced is applied")
			require.Empty(t, g.nodes[left].get("stale"))
			require.NoError(t, g.halt(left))
			g.start(left)
			require.EqualValues(t, entries+2, g.proposeAmong([]string{left}, "add n"), "it goes on alone after the next start, too")
		})
	}
}

func TestGreetingGolden(t *testing.T) {
	of := moraine.MarkedIncarnation{Number: 3, Mark: moraine.UUID{9, 8, 7}}
	p := raftstore.Greeting(cluster, "m1", of)
	golden(t, "greeting-v1.golden", p)
	c, node, got, err := raftstore.DecodeGreeting(p)
	require.NoError(t, err)
	require.Equal(t, cluster, c)
	require.Equal(t, "m1", node)
	require.Equal(t, of, got)
	for i := range p {
		bad := bytes.Clone(p)
		bad[i] ^= 8
		_, _, _, err := raftstore.DecodeGreeting(bad)
		require.Error(t, err, "byte %d", i)
	}
}

// Any bytes sent instead of a greeting are refused.
func FuzzGreeting(f *testing.F) {
	f.Add(raftstore.Greeting(cluster, "m1", moraine.MarkedIncarnation{Number: 3}))
	f.Fuzz(func(t *testing.T, p []byte) {
		c, node, of, err := raftstore.DecodeGreeting(p)
		if err == nil && !bytes.Equal(raftstore.Greeting(c, node, of), p) {
			t.Errorf("%x is read as another greeting", p)
		}
	})
}
