package raftstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
)

// relived is a node alone through several lives, in a bubble.
type relived struct {
	rng  *rand.Rand // of what the cuts leave
	lie  string     // the sync that is left out
	g    *group
	mem  *vfs.Mem   // what the last life left
	also []*vfs.Mem // what else its cut might have left
	err  error      // the first broken promise; nothing runs after it

	mu     sync.Mutex
	acked  int // of the keys k0, k1, ...: this many were acknowledged
	frozen bool
}

func newRelived(t *testing.T, rng *rand.Rand, lie string) *relived {
	r := &relived{rng: rng, lie: lie}
	r.g = newGroup(t, 1, func(_ string, cfg *raftstore.Config) { cfg.LogRetention = time.Nanosecond })
	r.mem = r.g.fs["m1"].(*vfs.Mem)
	return r
}

// life starts the node on mem, lets it work when it leads, and cuts it as planned, or then. more is
// how many additional results of the cut are drawn.
func (r *relived) life(mem *vfs.Mem, plan cutPlan, more int, work func(*node)) {
	if r.err != nil {
		return
	}
	d := &disk{mem: mem, rng: r.rng, plan: plan, lie: r.lie, more: more, before: r.freeze}
	r.g.fs["m1"] = vfs.NewFault(mem, d.rule)
	h := history{g: r.g, disks: map[string]*disk{"m1": d}}
	var n *node
	if r.err = h.start("m1"); r.err == nil {
		n, r.err = h.waitLeader()
	}
	if r.err == nil && n != nil && !d.isCut() {
		work(n)
	}
	r.mem, r.also = d.cut(), d.also
	if err := r.g.halt("m1"); err != nil && r.err == nil {
		r.err = fmt.Errorf("m1 ended: %w", err)
	}
}

// freeze: what was acknowledged so far must survive, and nothing else.
func (r *relived) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = true
}

// value is that of every key.
var value = fmt.Sprintf("%01000d", 7)

// propose sets the next keys.
func (r *relived) propose(n *node, keys int) {
	for range keys {
		_, err := n.store.Propose(ctxFor(20*time.Second), fmt.Appendf(nil, "set k%d %s", r.acked, value))
		r.mu.Lock()
		if err == nil && !r.frozen {
			r.acked++
		}
		over := err != nil || r.frozen
		r.mu.Unlock()
		if over {
			return
		}
	}
}

// withSnapshot runs the first life, and takes the state away: the next life makes
// it from the snapshot.
func (r *relived) withSnapshot() {
	r.life(r.mem, cutPlan{kill: true}, 0, func(n *node) {
		r.propose(n, 20)
		r.err = n.store.TakeSnapshot()
		r.propose(n, 1)
	})
	if r.err == nil {
		r.err = loseState(r.mem)
	}
}

// idle is the life of a node that only has to start.
func idle(*node) {}

// check requires the acknowledged keys on disks that the last cut might have left.
func (r *relived) check(mems []*vfs.Mem) {
	for _, mem := range mems {
		r.life(mem, cutPlan{}, 0, func(n *node) {
			for i := range r.acked {
				if n.get(fmt.Sprint("k", i)) != value {
					r.err = fmt.Errorf("k%d is gone: %d were acknowledged", i, r.acked)
					return
				}
			}
		})
	}
}

// TestRestoreOverTheRemainsOfAnother: a power cut leaves the database of a restore that did not
// commit. The next start makes one with the same name and is cut where it commits. CURRENT must not
// name the leftovers of the first.
func TestRestoreOverTheRemainsOfAnother(t *testing.T) {
	for seed := range uint64(4) {
		require.NoError(t, overTheRemains(t, seed, ""))
	}
}

// overTheRemains is one such history.
func overTheRemains(t *testing.T, seed uint64, lie string) error {
	return inBubble(t, fmt.Sprintf("over the remains of a restore, seed %d", seed), func(t *testing.T) error {
		r := newRelived(t, rand.New(rand.NewPCG(seed, 14)), lie)
		r.withSnapshot()
		r.life(r.mem, cutBefore("sync /node/state/CURRENT.new by stateDB.exchange"), 10, idle)
		remains := 0
		for _, mem := range append(r.also, r.mem) {
			if remains == 2 {
				break
			}
			if _, err := mem.Stat("/node/state/db-00000000000000000002/MANIFEST-000001"); err != nil {
				continue
			}
			remains++
			r.life(mem, cutBefore("syncdir /node/state by stateDB.exchange"), 16, idle)
			r.check(append(r.also, r.mem))
		}
		if r.err == nil && remains == 0 && lie == "" {
			return errors.New("no cut left a database")
		}
		return r.err
	})
}

// runSeeds runs as many histories, or full in the long form, each of which has
// its cuts follow a sync of its own, and leaves none out.
func runSeeds(t *testing.T, short, full uint64, history func(t *testing.T, seed uint64, follow, lie string) error) {
	for _, seed := range testseed.Seeds(t, short, full) {
		require.NoError(t, history(t, seed, followed(seed), ""), "seed %d, following %q", seed, followed(seed))
	}
}

// TestPowerCutsAroundASnapshot runs histories in which a node's power goes while
// it flushes its state and takes a snapshot.
func TestPowerCutsAroundASnapshot(t *testing.T) {
	runSeeds(t, 15, 400, aroundASnapshot)
}

// aroundASnapshot is one such history.
func aroundASnapshot(t *testing.T, seed uint64, follow, lie string) error {
	return inBubble(t, fmt.Sprintf("around a snapshot, seed %d", seed), func(t *testing.T) error {
		rng := rand.New(rand.NewPCG(seed, 15))
		r := newRelived(t, rng, lie)
		r.life(r.mem, soonAfter(rng, follow), 4, func(n *node) {
			for range 3 {
				r.propose(n, 10)
				n.store.TakeSnapshot() // may fail: the node may be on its way out
			}
		})
		r.check(append(r.also, r.mem))
		return r.err
	})
}

// TestPowerCutsAroundARestore runs histories in which a node takes its state
// from its snapshot, is cut or killed meanwhile, and cut again in its next life.
func TestPowerCutsAroundARestore(t *testing.T) {
	runSeeds(t, 15, 800, aroundARestore)
}

// aroundARestore is one such history.
func aroundARestore(t *testing.T, seed uint64, follow, lie string) error {
	return inBubble(t, fmt.Sprintf("around a restore, seed %d", seed), func(t *testing.T) error {
		rng := rand.New(rand.NewPCG(seed, 12))
		r := newRelived(t, rng, lie)
		r.withSnapshot()
		const commit = "syncdir /node/state by stateDB.exchange"
		var plan cutPlan
		switch seed % 4 {
		case 0: // CURRENT is renamed, and no process knows that it is not kept
			plan = cutBefore(commit)
			plan.kill = true
		case 1: // the restore has committed, and nothing else came after it
			plan = cutBefore(commit)
			plan.ops = 1
		case 2:
			plan = soonAfter(rng, follow)
		case 3:
			plan = soonAfter(rng, follow)
			plan.from(commit)
		}
		r.life(r.mem, plan, 4, idle)
		mem := r.mem
		r.check(r.also)
		more := 4
		plan = soonAfter(rng, follow)
		switch n := rng.IntN(8); {
		case n < 2:
			plan = cutPlan{at: 1 + rng.IntN(400)}
		case n < 7 && seed%4 == 0: // when all is done, with the most that may not be kept
			plan, more = cutPlan{}, 24
		}
		r.life(mem, plan, more, idle)
		r.check(append(r.also, r.mem))
		return r.err
	})
}

// TestPowerCutWhileASnapshotArrives cuts a follower's power at operations all
// through the installation of a snapshot and its restore.
func TestPowerCutWhileASnapshotArrives(t *testing.T) {
	g := newGroup(t, 3, func(name string, cfg *raftstore.Config) {
		cfg.LogRetention = time.Nanosecond
		cfg.SnapshotEntries = 1 << 60
	})
	g.bootstrap()
	bare := g.fs["m3"].(*vfs.Mem)
	moved, waiting := make(chan struct{}), atomic.Int64{}
	for _, name := range []string{"m1", "m2"} {
		g.fs[name] = vfs.NewFault(g.fs[name], func(op vfs.Op) error {
			if op.Kind == vfs.OpMkdir && strings.Contains(op.Path, "/snapshots/tmp-") && filepath.Base(op.Path) != "db" {
				waiting.Add(1)
				<-moved
			}
			return nil
		})
	}
	g.start("m1")
	g.start("m2")
	for i := range 200 {
		g.propose(fmt.Sprintf("set k%d %01000d", i, i))
	}
	// The state moves on while the snapshots are taken, and is in them.
	var taken sync.WaitGroup
	for _, n := range g.nodes {
		eventually(t, "both have all", func() bool { return n.get("k199") != "" })
		taken.Go(func() { assert.NoError(t, n.store.TakeSnapshot()) })
	}
	eventually(t, "both are at it", func() bool { return waiting.Load() == 2 })
	g.propose("set later 1")
	for _, n := range g.nodes {
		eventually(t, "both have it", func() bool { return n.get("later") != "" })
	}
	close(moved)
	taken.Wait()
	rng := rand.New(rand.NewPCG(7, 7))
	joined := func() bool {
		n := g.nodes["m3"]
		select {
		case err := <-n.ended:
			t.Fatalf("m3 ended: %v", err)
		case <-n.store.Ready():
			return n.get("k199") != ""
		default:
		}
		return false
	}
	cuts := testseed.Of(10, 100)
	total := 0
	for i := range cuts + 1 {
		d := &disk{mem: bare.Crash(rng), rng: rng}
		if i > 0 {
			d.plan.at = 1 + total*(i-1)/cuts + rng.IntN(total/cuts)
		}
		g.fs["m3"] = vfs.NewFault(d.mem, d.rule)
		g.start("m3")
		eventually(t, "it joins or is cut", func() bool { return d.isCut() || joined() })
		if i == 0 {
			total = d.count()
			require.NotZero(t, g.nodes["m3"].store.Status().Snapshot, "it came by a snapshot")
		}
		g.halt("m3")
		g.fs["m3"] = d.cut()
		g.start("m3")
		eventually(t, fmt.Sprintf("it joins after a cut at operation %d of %d", d.plan.at, total), joined)
		require.Equal(t, fmt.Sprintf("%01000d", 77), g.nodes["m3"].get("k77"))
		require.NoError(t, g.halt("m3"))
	}
}
