package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

func TestOneNode(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := newGroup(t, 1, nil)
	g.bootstrap()
	n := g.start("m1")
	g.leader()
	<-n.trues
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { g.propose(fmt.Sprintf("set k%d v%d", i, i)) })
	}
	wg.Wait()
	require.EqualValues(t, 1, g.propose("add n"))
	require.EqualValues(t, 2, g.propose("add n"))
	require.NoError(t, n.store.ReadBarrier(ctxFor(5*time.Second)))
	require.Equal(t, "v49", n.get("k49"))
	st := n.store.Status()
	require.True(t, st.Leads)
	require.Equal(t, "m1", st.Leader)
	require.Equal(t, st.LastIndex, st.Applied)
	require.NotZero(t, st.LogBytes)
	require.NoError(t, g.halt("m1"))
	require.ErrorIs(t, n.store.View(func(kvtx.Reader, uint64) error { return nil }), moraine.Unavailable)
	_, err := n.store.Propose(context.Background(), []byte("add n"))
	require.ErrorIs(t, err, moraine.NotLeader)

	n = g.start("m1")
	require.EqualValues(t, 3, g.propose("add n"), "nothing was applied twice")
	require.Equal(t, "v49", n.get("k49"))
	require.NoError(t, g.halt("m1"))
}

func TestThreeNodes(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() { g.propose(fmt.Sprintf("set k%d v%d", i, i)) })
	}
	wg.Wait()
	first := g.leader()
	require.NoError(t, first.store.ReadBarrier(ctxFor(10*time.Second)))
	require.Equal(t, "v99", first.get("k99"))
	for _, n := range g.nodes {
		eventually(t, "followers apply", func() bool { return n.get("k99") == "v99" })
		if n == first {
			continue
		}
		_, err := n.store.Propose(context.Background(), []byte("add n"))
		var hint *raftstore.NotLeader
		require.ErrorIs(t, err, moraine.NotLeader)
		require.ErrorAs(t, err, &hint)
		require.Equal(t, first.name, hint.Leader)
		require.Equal(t, []string{first.name + ":7000", first.name + ":7001"}, hint.Addresses)
		require.ErrorIs(t, n.store.ReadBarrier(context.Background()), moraine.NotLeader)
	}
	st := first.store.Status()
	require.Len(t, st.Peers, 3)
	for _, p := range st.Peers {
		require.NotZero(t, p.LastIndex, p.ID)
		require.GreaterOrEqual(t, p.Contact, time.Duration(0), p.ID)
	}

	// The leader stops; the others continue, and it catches up from the log.
	require.NoError(t, g.halt(first.name))
	for i := range 20 {
		g.propose(fmt.Sprintf("set late%d x%d", i, i))
	}
	back := g.start(first.name)
	<-back.store.Ready()
	eventually(t, "the old leader catches up", func() bool { return back.get("late19") == "x19" })
	g.stopAll()
}

// TestHandOver: a leader that must stop first transfers its leadership.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in a bubble: the time is that of the nodes alone
		g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) {
			cfg.HeartbeatTimeout = 2 * time.Second // an election by timeout would take 4 s and more
		})
		defer g.stopAll()
		g.bootstrap()
		g.startAll()
		g.propose("set a b")
		old := g.leader()
		start := time.Now()
		require.NoError(t, g.halt(old.name))
		g.propose("set a c")
		require.Less(t, time.Since(start), 2*time.Second)
	})
}

func TestFailoverKeepsWhatWasAcknowledged(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	for round := range 3 {
		last := ""
		for i := range 20 {
			last = fmt.Sprintf("r%dv%d", round, i)
			g.propose("set key " + last)
		}
		old := g.leader()
		g.net.isolate(old.name, true)
		var rest []string
		for _, name := range g.names {
			if name != old.name {
				rest = append(rest, name)
			}
		}
		next := g.leader(rest...)
		require.NoError(t, next.store.ReadBarrier(ctxFor(10*time.Second)))
		require.Equal(t, last, next.get("key"))
		g.net.isolate(old.name, false)
		eventually(t, "the old leader follows", func() bool {
			_, leads := old.store.Leader()
			return !leads
		})
	}
}

// TestDeposedLeaderServesNoStaleRead tests the rule of read rounds: only an acknowledgement of a
// message sent after the read arrived counts.
func TestDeposedLeaderServesNoStaleRead(t *testing.T) {
	for _, mutant := range []bool{false, true} {
		t.Run(fmt.Sprint("mutant=", mutant), func(t *testing.T) {
			g := newGroup(t, 3, func(name string, cfg *raftstore.Config) {
				cfg.HeartbeatTimeout = 200 * time.Millisecond
				if name == "m1" {
					// It believes in its own leadership for as long as the test takes.
					cfg.HeartbeatTimeout = 20 * time.Second
				}
			})
			g.bootstrap()
			g.start("m2")
			g.start("m3")
			g.propose("set key old")
			m1 := g.start("m1")
			eventually(t, "m1 follows", func() bool {
				<-m1.store.Ready()
				return m1.get("key") == "old"
			})
			eventually(t, "m1 leads", func() bool { // on a busy machine others may take over meanwhile
				_ = g.leader().store.TransferTo("m1")
				_, leads := m1.store.Leader()
				return leads
			})
			require.NoError(t, m1.store.ReadBarrier(ctxFor(10*time.Second)))
			if mutant {
				m1.store.CountEveryAck()
			}
			for _, peer := range []string{"m2", "m3"} {
				g.net.hold("m1", peer, true)
				g.net.hold(peer, "m1", true)
			}
			eventually(t, "another leader takes a write", func() bool {
				_, err := g.leader("m2", "m3").store.Propose(ctxFor(10*time.Second), []byte("set key new"))
				return err == nil
			})
			_, leads := m1.store.Leader()
			require.True(t, leads, "the test is about a leader that does not know")

			err := m1.store.ReadBarrier(ctxFor(300 * time.Millisecond))
			stale := err == nil && m1.get("key") == "old"
			require.Equal(t, mutant, stale)
			if !mutant {
				require.True(t, errors.Is(err, moraine.Timeout) || errors.Is(err, moraine.NotLeader), "%v", err)
			}
			for _, peer := range []string{"m2", "m3"} {
				g.net.hold("m1", peer, false)
				g.net.hold(peer, "m1", false)
			}
		})
	}
}

// TestReadsShareRounds: reads that arrive together cost one round, and a round
// that began before a read does not serve it.
func TestReadsShareRounds(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	g.propose("set key v")
	n := g.leader()
	const readers, each = 64, 20
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for range each {
				if err := n.store.ReadBarrier(ctxFor(20 * time.Second)); err != nil && !errors.Is(err, moraine.NotLeader) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestSnapshotForALogThatGoesFurther: a deposed leader has uncommitted entries, more than the
// others wrote since, and the others' logs no longer reach back to the point where they differ. It
// receives a snapshot of an earlier entry than its last, and must follow from there.
func TestSnapshotForALogThatGoesFurther(t *testing.T) {
	g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) {
		cfg.LogRetention = time.Nanosecond
		cfg.SnapshotEntries = 1 << 60 // when the test says
	})
	g.bootstrap()
	g.startAll()
	g.propose("set before x")
	old := g.leader()
	g.net.isolate(old.name, true)
	var alone sync.WaitGroup
	for range 50 {
		alone.Go(func() {
			_, err := old.store.Propose(ctxFor(time.Second), []byte("set never x"))
			assert.Error(t, err)
		})
	}
	alone.Wait()
	end := old.store.Status().LastIndex
	others := slices.DeleteFunc(slices.Clone(g.names), func(name string) bool { return name == old.name })
	g.leader(others...)
	for i := range 5 { // a segment each
		g.proposeAmong(others, fmt.Sprintf("set k%d %060000d", i, i))
	}
	for _, name := range others {
		n := g.nodes[name]
		eventually(t, "both have all", func() bool { return n.get("k4") != "" })
		require.NoError(t, n.store.TakeSnapshot())
		require.Less(t, n.store.Status().Snapshot, end)
	}
	g.net.isolate(old.name, false)
	eventually(t, "it catches up", func() bool { return old.get("k4") != "" })
	g.propose("set after y")
	eventually(t, "it follows", func() bool { return old.get("after") == "y" })
	require.NotZero(t, old.store.Status().Snapshot, "it came by a snapshot")
	require.Empty(t, old.get("never"))
	require.NoError(t, g.halt(old.name))
	n := g.start(old.name)
	<-n.store.Ready()
	g.propose("set again z")
	eventually(t, "it follows after a restart", func() bool { return n.get("again") == "z" })
}

func TestFollowerIsSentASnapshot(t *testing.T) {
	g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) {
		cfg.LogRetention = time.Nanosecond
		cfg.SnapshotEntries = 1 << 60 // when the test says
	})
	g.bootstrap()
	g.startAll()
	g.propose("set before x")
	away := g.names[0]
	if g.leader().name == away {
		away = g.names[1]
	}
	require.NoError(t, g.halt(away))
	for i := range 300 { // several segments: within one the log still finds what was truncated
		g.propose(fmt.Sprintf("set pad%d %0500d", i, i))
		g.propose(fmt.Sprintf("set k%d v%d", i, i))
	}
	for _, n := range g.nodes { // whichever of them leads then
		eventually(t, "both have all", func() bool { return n.get("k299") == "v299" })
		require.NoError(t, n.store.TakeSnapshot())
		require.NotZero(t, n.store.Status().Snapshot)
		require.Greater(t, n.store.Status().FirstIndex, uint64(100), "the log was truncated")
	}
	g.propose("set after y")

	n := g.start(away)
	<-n.store.Ready()
	eventually(t, "it catches up", func() bool { return n.get("after") == "y" })
	require.Equal(t, "v299", n.get("k299"))
	require.Equal(t, "x", n.get("before"))
	require.NotZero(t, n.store.Status().Snapshot)
	require.NoError(t, g.halt(away))

	// Restarted, it finds its state, and can become the leader of the others.
	n = g.start(away)
	<-n.store.Ready()
	require.Equal(t, "v299", n.get("k299"))
	g.propose("set k299 again")
	eventually(t, "it follows", func() bool { return n.get("k299") == "again" })

	// A state that is lost comes back from the snapshot.
	require.NoError(t, g.halt(away))
	require.NoError(t, g.fs[away].RemoveAll("/node/state"))
	require.NoError(t, g.fs[away].MkdirAll("/node/state"))
	n = g.start(away)
	<-n.store.Ready()
	eventually(t, "it is restored", func() bool { return n.get("k299") == "again" })
	require.Equal(t, "v298", n.get("k298"))
}

func TestSnapshotsAndRetention(t *testing.T) {
	g := newGroup(t, 1, func(_ string, cfg *raftstore.Config) { cfg.LogRetentionBytes = 128 << 10 })
	g.bootstrap()
	n := g.start("m1")
	for i := range 2000 {
		g.propose(fmt.Sprintf("set k%d %0100d", i, i))
	}
	require.NoError(t, n.store.TakeSnapshot())
	st := n.store.Status()
	require.LessOrEqual(t, st.LogBytes, int64(200<<10), "by size: two segments and the metadata")
	require.Greater(t, st.FirstIndex, uint64(1))
	require.NoError(t, g.halt("m1"))
	names, err := g.fs["m1"].List("/node/snapshots")
	require.NoError(t, err)
	require.Len(t, names, 1)

	n = g.start("m1")
	g.propose("set k0 again")
	require.Equal(t, fmt.Sprintf("%0100d", 1999), n.get("k1999"))
	require.NoError(t, g.halt("m1"))

	g.tune = func(_ string, cfg *raftstore.Config) { cfg.LogRetention = time.Hour }
	n = g.start("m1")
	for i := range 500 {
		g.propose(fmt.Sprintf("set k%d %0100d", i, i))
	}
	first := n.store.Status().FirstIndex
	require.NoError(t, n.store.TakeSnapshot())
	require.Equal(t, first, n.store.Status().FirstIndex, "young entries stay")
}

// Entries after a snapshot that is being sent stay in the log, however young the newest snapshot
// is, until it was sent and the retention time has passed.
func TestLogIsKeptForASnapshotThatIsSent(t *testing.T) {
	const retention = 300 * time.Millisecond
	g := newGroup(t, 1, func(_ string, cfg *raftstore.Config) { cfg.LogRetention = retention })
	g.bootstrap()
	n := g.start("m1")
	grow := func() uint64 { // by some segments, and a snapshot, which may drop what is old
		for i := range 10 {
			g.propose(fmt.Sprintf("set k%d %060000d", i, i))
		}
		time.Sleep(retention + 10*time.Millisecond)
		require.NoError(t, n.store.TakeSnapshot())
		return n.store.Status().FirstIndex
	}
	grow()
	info, stream, err := n.store.Snapshot(ctxFor(10 * time.Second))
	require.NoError(t, err)
	for range 3 {
		require.LessOrEqual(t, grow(), info.Applied, "it is being sent")
	}
	require.NoError(t, stream.Close())
	require.LessOrEqual(t, n.store.Status().FirstIndex, info.Applied)
	eventually(t, "it was sent long ago", func() bool { return grow() > info.Applied })
}

func TestEntryThatCannotBeApplied(t *testing.T) {
	g := newGroup(t, 1, nil)
	g.bootstrap()
	n := g.start("m1")
	g.propose("set a b")
	_, err := n.store.Propose(ctxFor(10*time.Second), []byte("nonsense"))
	require.ErrorIs(t, err, moraine.Unavailable)
	err = <-n.ended
	require.ErrorContains(t, err, `unknown command "nonsense"`)
	n.ended <- err

	// The entry is in the log: the node stops again, and loses nothing.
	g.halt("m1")
	n = g.start("m1")
	require.ErrorContains(t, <-n.ended, "nonsense")
	n.ended <- nil
}

func TestDirectories(t *testing.T) {
	g := newGroup(t, 1, nil)
	cfg, deps := g.config("m1"), g.deps("m1")
	run := func(cfg raftstore.Config) error {
		deps := deps
		deps.Stream = g.net.node(cfg.Node)
		s, err := raftstore.New(cfg, deps)
		require.NoError(t, err)
		return s.Run(ctxFor(10 * time.Second))
	}
	require.ErrorIs(t, run(cfg), moraine.NotFound)
	require.NoError(t, raftstore.Bootstrap(cfg, deps))
	require.NoError(t, raftstore.Bootstrap(cfg, deps), "again is no harm")

	other := cfg
	other.Cluster = moraine.UUID{9}
	require.ErrorIs(t, run(other), moraine.WrongCluster)
	require.ErrorIs(t, raftstore.Bootstrap(other, deps), moraine.WrongCluster)
	other = cfg
	other.Node, other.Peers = "m2", []raftstore.Peer{{ID: "m2", Address: "m2"}}
	require.ErrorIs(t, run(other), moraine.WrongCluster)

	g.start("m1")
	g.propose("set a b")
	require.ErrorIs(t, run(cfg), moraine.Busy)
	require.NoError(t, g.halt("m1"))

	fsys := g.fs["m1"]
	identity := readAll(t, fsys, "/node/IDENTITY")
	newer := append([]byte(nil), identity...)
	newer[8] = 4
	fixSum(newer)
	writeAll(t, fsys, "/node/IDENTITY", newer)
	require.ErrorIs(t, run(cfg), moraine.NewerFormat)
	newer[9] ^= 1
	writeAll(t, fsys, "/node/IDENTITY", newer)
	require.ErrorIs(t, run(cfg), moraine.Corrupt)
	require.NoError(t, fsys.Remove("/node/IDENTITY"))
	require.ErrorIs(t, raftstore.Bootstrap(cfg, deps), moraine.Corrupt, "data without an identity is not formed over")
	writeAll(t, fsys, "/node/IDENTITY", identity)

	require.NoError(t, fsys.Remove("/node/log/META"))
	require.ErrorIs(t, run(cfg), moraine.Corrupt, "segments without their list are not deleted")
}

// A node without other voters does not end when its disk hangs, because no other could replace it.
// It reports that and continues. (With other voters it ends: TestBadDiskOfALeader.)
func TestALoneVoterWaitsForItsDisk(t *testing.T) {
	disk := &badDisk{release: make(chan struct{})}
	g := newGroup(t, 1, func(_ string, cfg *raftstore.Config) { cfg.LogStall = 50 * time.Millisecond })
	g.said = &said{}
	g.fs["m1"] = vfs.NewFault(g.fs["m1"], disk.rule)
	g.bootstrap()
	n := g.start("m1")
	g.propose("set a b")
	require.NoError(t, n.store.Stalled())
	disk.hangs.Store(true)
	ended := make(chan error, 1)
	go func() {
		_, err := n.store.Propose(ctxFor(time.Minute), []byte("set a c"))
		ended <- err
	}()
	eventually(t, "it says that its disk hangs", func() bool {
		select {
		case err := <-n.ended:
			t.Fatalf("it ended: %v", err)
		default:
		}
		return n.store.Stalled() != nil
	})
	require.ErrorIs(t, n.store.Stalled(), moraine.Unavailable)
	eventually(t, "its log says so", func() bool {
		return strings.Contains(g.said.String(), "the disk of the log hangs; no other server can lead, so this one waits")
	})
	require.NotContains(t, g.said.String(), "the disk of the log answers again")
	disk.hangs.Store(false)
	close(disk.release)
	require.NoError(t, <-ended)
	eventually(t, "it has seen that its disk answers", func() bool { return n.store.Stalled() == nil })
	eventually(t, "its log says so", func() bool { return strings.Contains(g.said.String(), "the disk of the log answers again") })
	g.propose("set a d")
	require.Equal(t, "d", n.get("a"))
}

func TestLowSpace(t *testing.T) {
	mem := vfs.NewMem(1)
	mem.SetCapacity(64 << 20)
	g := newGroup(t, 1, func(_ string, cfg *raftstore.Config) {
		cfg.BallastBytes = 1 << 20
		cfg.MinFree = 0.5
	})
	g.fs["m1"] = mem
	g.bootstrap()
	n := g.start("m1")
	g.propose("set a b")
	require.False(t, n.store.LowSpace())
	info, err := mem.Stat("/node/BALLAST")
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, info.Bytes)
	usage, err := mem.Usage("/")
	require.NoError(t, err)
	used := int64(usage.Total - usage.Free)
	mem.SetCapacity(used + used/2)
	n.store.CheckSpace()
	require.True(t, n.store.LowSpace())
	require.True(t, n.store.Status().LowSpace)
}

func TestProposalsAreBoundedAndCancelled(t *testing.T) {
	g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) {
		cfg.MaxInFlight = 4
		cfg.HeartbeatTimeout = 3 * time.Second
	})
	g.bootstrap()
	g.startAll()
	g.propose("set a b")
	n := g.leader()
	for _, peer := range g.names {
		if peer != n.name {
			g.net.hold(n.name, peer, true)
		}
	}
	for range 8 {
		_, err := n.store.Propose(ctxFor(20*time.Millisecond), []byte("set a c"))
		require.ErrorIs(t, err, moraine.Timeout)
	}
	_, err := n.store.Propose(context.Background(), make([]byte, 17<<20))
	require.ErrorIs(t, err, moraine.TooLarge)
}

// TestStartEndsWhateverFails: if any write of the state's manifest fails while a node starts, which
// pebble cannot survive, Run ends with an error or the node serves, and the next process finds
// everything.
func TestStartEndsWhateverFails(t *testing.T) {
	g := newGroup(t, 1, nil)
	mem := g.fs["m1"].(*vfs.Mem)
	g.bootstrap()
	g.start("m1")
	g.propose("set k v")
	require.NoError(t, g.halt("m1"))
	for step := int64(1); ; step++ {
		var calls atomic.Int64
		disk := mem.Clone()
		g.fs["m1"] = vfs.NewFault(disk, func(op vfs.Op) error {
			if writes(op.Kind) && strings.Contains(op.Path, "MANIFEST") && calls.Add(1) == step {
				return fmt.Errorf("call %d, %s of %s: %w", step, op.Kind, op.Path, syscall.EIO)
			}
			return nil
		})
		n := g.start("m1")
		eventually(t, "it ends or serves", func() bool {
			select {
			case err := <-n.ended:
				require.Error(t, err)
				n.ended <- nil
				return true
			default:
				_, leads := n.store.Leader()
				return leads
			}
		})
		g.halt("m1") //nolint:errcheck // what failed may show as late as here
		g.fs["m1"] = disk.Clone()
		g.start("m1")
		g.leader()
		eventually(t, "it has everything", func() bool { return g.nodes["m1"].get("k") == "v" })
		require.NoError(t, g.halt("m1"))
		if calls.Load() < step {
			return
		}
	}
}

func writes(k vfs.OpKind) bool { return k == vfs.OpWrite || k == vfs.OpSync }

// A round first asks the nodes that it needs, and then the others if those do not answer: reads
// continue whichever node is silent.
func TestReadsGoOnWhileANodeIsSilent(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	g.propose("set key v")
	for _, silent := range g.names {
		rest := slices.DeleteFunc(slices.Clone(g.names), func(name string) bool { return name == silent })
		g.net.isolate(silent, true)
		eventually(t, "reads go on without "+silent, func() bool {
			return g.leader(rest...).store.ReadBarrier(ctxFor(5*time.Second)) == nil
		})
		g.net.isolate(silent, false)
		back := time.Now()
		eventually(t, silent+" answers again", func() bool {
			peers := g.leader().store.Status().Peers
			i := slices.IndexFunc(peers, func(p raftstore.PeerStatus) bool { return p.ID == silent })
			return i >= 0 && peers[i].Contact >= 0 && peers[i].Contact < time.Since(back)
		})
	}
}

// Whether a node may take part, whether it has, and its directory's incarnation are known before it
// runs.
func TestASeatIsKnownBeforeTheNodeRuns(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	idle := func(name string) *raftstore.Store {
		deps := g.deps(name)
		deps.Stream = g.net.node(name)
		s, err := raftstore.New(g.config(name), deps)
		require.NoError(t, err)
		return s
	}
	seat := func() raftstore.Identity {
		id, err := idle("m1").Identity()
		require.NoError(t, err)
		return id
	}
	require.False(t, seat().Admitted || seat().Entered)
	require.NoError(t, idle("m1").Admit(moraine.MarkedIncarnation{Number: 1}))
	require.True(t, seat().Admitted)
	require.False(t, seat().Entered)
	require.NoError(t, idle("m1").Enter())
	require.True(t, seat().Entered)
	require.Zero(t, seat().Incarnation, "the state has it")
	to := moraine.MarkedIncarnation{Number: 3, Mark: moraine.UUID{3}}
	require.NoError(t, idle("m2").Admit(to))
	require.Equal(t, to, idle("m2").Incarnation(), "no state tells of a mark")
}
