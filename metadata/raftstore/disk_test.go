package raftstore_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// badDisk makes a node's disk fail at every write and sync of its log.
type badDisk struct {
	how     atomic.Pointer[error] // nil: it works
	hangs   atomic.Bool
	release chan struct{} // at the end of the test
}

func (d *badDisk) rule(op vfs.Op) error {
	if op.Kind != vfs.OpWrite && op.Kind != vfs.OpSync {
		return nil
	}
	if d.hangs.Load() {
		<-d.release
	}
	if err := d.how.Load(); err != nil {
		return *err
	}
	return nil
}

// TestBadDiskOfALeader lets a leader's disk hang, fail, or be full. The leader ends in time,
// another one leads, and nothing is lost. It does not come back, or stand for election, until its
// disk works; then it takes part again.
func TestBadDiskOfALeader(t *testing.T) {
	for name, bad := range map[string]error{"hangs": nil, "EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) { cfg.LogStall = 300 * time.Millisecond })
			disks, mems := map[string]*badDisk{}, map[string]*vfs.Mem{}
			for _, m := range g.names {
				disks[m] = &badDisk{release: make(chan struct{})}
				mems[m] = g.fs[m].(*vfs.Mem)
				g.fs[m] = vfs.NewFault(mems[m], disks[m].rule)
			}
			g.bootstrap()
			g.startAll()
			g.propose("set a 1")
			victim := g.leader()
			disk := disks[victim.name]
			if bad == nil {
				disk.hangs.Store(true)
			} else {
				disk.how.Store(&bad)
			}
			_, err := victim.store.Propose(ctxFor(20*time.Second), []byte("set a 2"))
			require.ErrorIs(t, err, moraine.Unavailable)
			var rest []string
			for _, m := range g.names {
				if m != victim.name {
					rest = append(rest, m)
				}
			}
			require.Error(t, <-victim.ended)
			delete(g.nodes, victim.name)
			g.proposeAmong(rest, "set b 1")
			again := g.start(victim.name)
			if err := <-again.ended; bad != nil {
				require.ErrorIs(t, err, bad, "the probe")
			} else {
				require.ErrorContains(t, err, "the disk hangs")
			}
			delete(g.nodes, victim.name)
			disk.how.Store(nil)
			// A hanging call never returns: the process would have ended with it.
			g.fs[victim.name] = mems[victim.name].Clone()
			g.start(victim.name)
			g.propose("set c 1")
			eventually(t, "it has everything", func() bool {
				return g.nodes[victim.name].store.Status().Applied > 0 && g.nodes[victim.name].get("b") == "1" && g.nodes[victim.name].get("c") == "1"
			})
			close(disk.release)
		})
	}
}

// TestAllDisksFull lets the disks of all nodes fill until every node has ended. Restarted, they
// delete their ballast, elect a leader and accept requests that free space, for long: the log is
// deleted with each snapshot, however young. With room on the disks they work as before.
func TestAllDisksFull(t *testing.T) {
	const ballast = 1 << 20
	g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) {
		cfg.BallastBytes, cfg.SnapshotEntries = ballast, 400
		// Of disks as small as these: what snapshots free is not to end the low space, or
		// the log would be kept again, and fill them between two looks.
		cfg.MinFree = 0.2
	})
	mems := map[string]*vfs.Mem{}
	var unseen atomic.Bool // nobody looks at the free space: the disks fill between two looks
	for _, m := range g.names {
		mems[m] = g.fs[m].(*vfs.Mem)
		mems[m].SetCapacity(1 << 30)
		g.fs[m] = vfs.NewFault(mems[m], func(op vfs.Op) error {
			if op.Kind == vfs.OpUsage && unseen.Load() {
				return errors.New("not now")
			}
			return nil
		})
	}
	g.bootstrap()
	g.startAll()
	value := strings.Repeat("x", 1000)
	g.propose("set a " + value)
	unseen.Store(true)
	for _, m := range g.names {
		info, err := mems[m].Stat("/node/BALLAST")
		require.NoError(t, err)
		require.EqualValues(t, ballast, info.Bytes)
		usage, err := mems[m].Usage("/")
		require.NoError(t, err)
		mems[m].SetCapacity(int64(usage.Total-usage.Free) + 300<<10)
	}
	for n := 0; len(g.nodes) > 0; n++ {
		for _, name := range g.names {
			node := g.nodes[name]
			if node == nil {
				continue
			}
			if _, leads := node.store.Leader(); leads {
				_, _ = node.store.Propose(ctxFor(time.Second), fmt.Appendf(nil, "set k%d %s", n, value))
			}
			select {
			case err := <-node.ended:
				require.ErrorIs(t, err, syscall.ENOSPC)
				delete(g.nodes, name)
			default:
			}
			if len(g.nodes) == 1 { // without a majority it takes nothing more, and goes on
				for _, last := range g.names {
					g.halt(last)
				}
			}
		}
	}
	unseen.Store(false)
	for _, m := range g.names { // somebody else takes what is left
		usage, err := mems[m].Usage("/")
		require.NoError(t, err)
		mems[m].SetCapacity(int64(usage.Total - usage.Free))
	}
	g.startAll()
	leader := g.leader()
	require.True(t, leader.store.LowSpace())
	_, err := mems[leader.name].Stat("/node/BALLAST")
	require.ErrorIs(t, err, fs.ErrNotExist)
	first := leader.store.Status().FirstIndex
	for _, name := range g.names {
		<-g.nodes[name].store.Ready()
	}
	// More than the ballast has room for.
	for n := range 3 * ballast / 1000 {
		g.propose("set a " + value)
		if n%100 == 99 {
			for _, name := range g.names {
				_ = g.nodes[name].store.TakeSnapshot() // as each does every few seconds
			}
		}
	}
	require.Greater(t, g.leader().store.Status().FirstIndex, first, "the log was cut off")
	for _, m := range g.names {
		mems[m].SetCapacity(1 << 30)
		g.nodes[m].store.CheckSpace()
		require.False(t, g.nodes[m].store.LowSpace())
		_, err := mems[m].Stat("/node/BALLAST")
		require.NoError(t, err)
	}
}

// TestNearlyFullDiskIsKeptSmall checks a node's rule: while its disk is nearly full it takes
// snapshots by itself.
func TestNearlyFullDiskIsKeptSmall(t *testing.T) {
	g := newGroup(t, 1, func(_ string, cfg *raftstore.Config) { cfg.MinFree = 0.5 })
	mem := g.fs["m1"].(*vfs.Mem)
	g.bootstrap()
	n := g.start("m1")
	for range 20 {
		g.propose("set a b")
	}
	require.Zero(t, n.store.Status().Snapshot)
	usage, err := mem.Usage("/")
	require.NoError(t, err)
	mem.SetCapacity(int64(usage.Total-usage.Free) * 3 / 2)
	n.store.CheckSpace()
	eventually(t, "a snapshot", func() bool { return n.store.Status().Snapshot > 0 })
}

// TestStateLogThatFails makes the disk full, or fail, when pebble starts a new log of its own or
// ends the previous one: for a snapshot, in a clean stop after much was collected, and while
// entries arrive. pebble then panics with a lock that it has already released. The node still ends
// with the disk's error, and has everything when its disk works.
func TestStateLogThatFails(t *testing.T) {
	for name, end := range map[string]func(n *node) error{
		"snapshot": func(n *node) error {
			go n.store.TakeSnapshot() // never returns
			return <-n.ended
		},
		"stop": func(n *node) error {
			n.stop()
			return <-n.ended
		},
		"entries": func(n *node) error {
			for {
				select {
				case err := <-n.ended:
					return err
				default:
					_, _ = n.store.Propose(ctxFor(time.Second), []byte("set b "+strings.Repeat("y", 20<<10)))
				}
			}
		},
	} {
		for _, c := range []struct {
			bad error
			at  vfs.OpKind
		}{
			{syscall.ENOSPC, vfs.OpOpen}, {syscall.ENOSPC, vfs.OpWrite},
			{syscall.EIO, vfs.OpOpen}, {syscall.EIO, vfs.OpWrite}, {syscall.EIO, vfs.OpSync},
		} {
			bad := c.bad
			t.Run(fmt.Sprint(name, " ", c.at, " ", bad), func(t *testing.T) {
				t.Parallel()
				g := newGroup(t, 1, nil)
				mem := g.fs["m1"].(*vfs.Mem)
				var failing atomic.Bool
				g.fs["m1"] = vfs.NewFault(mem, func(op vfs.Op) error {
					if failing.Load() && op.Kind == c.at && strings.HasPrefix(op.Path, "/node/state/") && strings.HasSuffix(op.Path, ".log") {
						return bad
					}
					return nil
				})
				g.bootstrap()
				n := g.start("m1")
				value := strings.Repeat("x", 200<<10) // some are more than a table in memory
				for i := range 4 {
					g.propose(fmt.Sprintf("set k%d %s", i, value))
				}
				failing.Store(true)
				require.ErrorIs(t, end(n), bad)
				require.ErrorIs(t, n.store.View(func(kvtx.Reader, uint64) error { return nil }), moraine.Unavailable)
				delete(g.nodes, "m1")
				failing.Store(false)
				g.fs["m1"] = mem.Clone() // what waits for ever would have ended with its process
				n = g.start("m1")
				g.propose("set a 1")
				for i := range 4 {
					require.Equal(t, value, n.get(fmt.Sprint("k", i)))
				}
			})
		}
	}
}
