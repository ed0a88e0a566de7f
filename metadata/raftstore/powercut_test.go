package raftstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
)

// long asks for the tests that take minutes.
var long = os.Getenv("MORAINE_TEST_LONG") != ""

// padFSM is kvFSM whose entries may carry padding after a "|".
type padFSM struct{ kvFSM }

func (f padFSM) ApplyEntry(kv state.KV, index uint64, entry []byte) (any, error) {
	command, _, _ := strings.Cut(string(entry), "|")
	return f.kvFSM.ApplyEntry(kv, index, []byte(command))
}

// history is a group of nodes through several lives, each of which ends with
// the power of all, or with a kill -9, at an operation that the seed chooses.
type history struct {
	size int
	seed uint64
	// follow is the sync that most cuts come soon after.
	follow string
	// lie is the sync that is left out.
	lie   string
	sites *siteCounts

	g    *group
	rng  *rand.Rand
	mems map[string]*vfs.Mem
	book *ledger

	mu    sync.Mutex
	disks map[string]*disk // of this life
}

// kills and restores are the histories that a seed chooses between: those where
// a process that kill -9 ended leaves unsynced work to the next, and those where
// every second life restores the state from a snapshot.
func (h *history) kills() bool    { return h.seed/2%2 == 1 }
func (h *history) restores() bool { return h.seed/4%2 == 1 }

// lives is how many a history has; the last one only looks at what the others
// left, and works a little.
const lives = 5

// run returns the first promise that was broken. Errors of proposals are part of
// life; a node that does not start again is not.
func (h *history) run(t *testing.T) error {
	return inBubble(t, fmt.Sprintf("among %d nodes, seed %d", h.size, h.seed), h.live)
}

// inBubble runs a history in a bubble. A node that pebble broke leaves
// goroutines, over which synctest panics at the end of the bubble: what was
// broken is said before.
func inBubble(t *testing.T, what string, live func(t *testing.T) error) (err error) {
	synctest.Test(t, func(t *testing.T) {
		if err = live(t); err != nil {
			bitten(what, err)
			t.Logf("%s: %v", what, err)
		}
	})
	return err
}

func (h *history) live(t *testing.T) error {
	h.rng = rand.New(rand.NewPCG(h.seed, uint64(h.size)))
	h.g = newGroup(t, h.size, func(_ string, cfg *raftstore.Config) {
		cfg.LogRetention = time.Nanosecond
		cfg.SnapshotEntries = 1 << 60
	})
	defer h.g.stopAll()
	h.g.fsm = padFSM{}
	h.book = newLedger()
	h.mems = map[string]*vfs.Mem{}
	for _, name := range h.g.names {
		h.mems[name] = h.g.fs[name].(*vfs.Mem)
	}
	for life := range lives {
		h.plan(life)
		err := h.oneLife(life)
		if err = h.end(err); err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
		for _, name := range h.g.names {
			if h.restores() && life%2 == 0 || h.rng.IntN(2) == 0 {
				if err := loseState(h.mems[name]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// end cuts all disks and stops all nodes. A node that ended by itself has broken
// a promise, unless one was before: err.
func (h *history) end(err error) error {
	for _, name := range h.g.names {
		h.mems[name] = h.disk(name).cut()
	}
	for _, name := range h.g.names {
		if ended := h.g.halt(name); err == nil && ended != nil {
			err = fmt.Errorf("%s ended: %w", name, ended)
		}
	}
	return err
}

// plan makes the disks of a life: one node of them all, on average, loses its
// power, or is killed, before the end.
func (h *history) plan(life int) {
	for i, name := range h.g.names {
		rng := rand.New(rand.NewPCG(h.seed, uint64(100*life+i)))
		var p cutPlan
		if rng.IntN(h.size) == 0 && !(h.restores() && life == 0) {
			p = planCut(rng, h.follow, life, h.kills())
		}
		h.insert(name, rng, p)
	}
}

// insert gives a node its disk, with a plan.
func (h *history) insert(name string, rng *rand.Rand, p cutPlan) {
	h.g.net.isolate(name, false)
	if h.size == 1 {
		p.again = false // a group of one cannot be kept from going on by itself
	}
	d := &disk{mem: h.mems[name], rng: rng, plan: p, lie: h.lie, sites: h.sites}
	d.before = func() {
		h.g.net.isolate(name, true) // nobody hears what it does on a disk that is gone
		if !p.again {
			h.book.freeze()
		}
	}
	h.g.fs[name] = vfs.NewFault(d.mem, d.rule)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.disks == nil {
		h.disks = map[string]*disk{}
	}
	h.disks[name] = d
}

func (h *history) disk(name string) *disk {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.disks[name]
}

// anyCut reports whether the life is about to end.
func (h *history) anyCut() bool {
	return slices.ContainsFunc(h.g.names, func(name string) bool {
		d := h.disk(name)
		return d.isCut() && !d.revivable()
	})
}

// revive starts those nodes again that were killed to come back in this life.
func (h *history) revive() error {
	for _, name := range h.g.names {
		d := h.disk(name)
		if h.g.nodes[name] == nil || !d.revivable() {
			continue
		}
		if err := h.g.halt(name); err != nil {
			return fmt.Errorf("%s ended: %w", name, err)
		}
		h.mems[name] = d.cut()
		h.insert(name, d.rng, *d.plan.next)
		if err := h.start(name); err != nil {
			return err
		}
	}
	return nil
}

func (h *history) start(name string) error {
	if err := raftstore.Bootstrap(h.g.config(name), h.g.deps(name)); err != nil {
		return fmt.Errorf("bootstrap %s: %w", name, err)
	}
	h.g.start(name)
	return nil
}

// oneLife starts the group, checks what the last life left, and works until a
// disk is cut or the work is done. One node of three may come late, to find the
// log gone that it needs: it gets a snapshot.
func (h *history) oneLife(life int) error {
	g, late := h.g, ""
	if h.size > 1 && h.rng.IntN(3) > 0 {
		late = g.names[h.rng.IntN(h.size)]
	}
	for _, name := range g.names {
		if name == late {
			continue
		}
		if err := h.start(name); err != nil {
			return err
		}
	}
	n, err := h.waitLeader()
	if n == nil || err != nil {
		return err
	}
	if err := n.store.ReadBarrier(ctxFor(20 * time.Second)); err != nil {
		return nil // cut, or led by another by now: the next life checks
	}
	if err := n.store.View(func(r state.Reader, _ uint64) error { return h.book.check(r) }); err != nil {
		return err
	}
	if err := h.work(n, life); err != nil || late == "" || h.anyCut() {
		return err
	}
	for _, n := range g.nodes {
		select {
		case <-n.store.Ready():
			n.store.TakeSnapshot() // may fail: there may be nothing new
		default:
		}
	}
	if err := h.start(late); err != nil {
		return err
	}
	return h.waitFor(late, n)
}

// work has three proposers at the leader, while it takes snapshots.
func (h *history) work(n *node, life int) error {
	var wg sync.WaitGroup
	for w := range 3 {
		work := h.rng.IntN(60)
		pad := strings.Repeat("x", h.rng.IntN(3000))
		wg.Go(func() {
			for i := 0; i < work && !h.anyCut(); i++ {
				key := fmt.Sprintf("life%d-worker%d", life, w)
				h.book.ask(key)
				result, err := n.store.Propose(ctxFor(20*time.Second), []byte("add "+key+"|"+pad))
				if err == nil {
					h.book.ack(key, result.(uint64))
				}
			}
		})
	}
	snapshots := h.rng.IntN(3)
	if h.restores() {
		snapshots++
	}
	wg.Go(func() {
		for range snapshots {
			n.store.TakeSnapshot() // may fail: the node may be on its way out
		}
	})
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	defer func() { <-done }()
	return h.wait("the work does not end", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// waitLeader returns nil if a disk is cut first.
func (h *history) waitLeader() (n *node, err error) {
	err = h.wait("nobody leads", func() bool {
		for _, other := range h.g.nodes {
			if _, leads := other.store.Leader(); leads {
				n = other
			}
		}
		return n != nil
	})
	return n, err
}

// waitFor returns when a node has what the leader has now, or a disk is cut.
func (h *history) waitFor(name string, leader *node) error {
	want := leader.store.Status().Applied
	return h.wait(name+" does not catch up", func() bool {
		select {
		case <-h.g.nodes[name].store.Ready():
			return h.g.nodes[name].store.Status().Applied >= want
		default:
			return false
		}
	})
}

// wait returns nil when cond holds or the life is to end, and an error when a
// node ends. Nodes that are to come back do while it waits.
func (h *history) wait(otherwise string, cond func() bool) error {
	for range 600_000 {
		if err := h.revive(); err != nil || h.anyCut() || cond() {
			return err
		}
		for _, n := range h.g.nodes {
			select {
			case err := <-n.ended:
				n.ended <- nil
				if err != nil && !h.disk(n.name).isCut() {
					return fmt.Errorf("%s ended: %w", n.name, err)
				}
			default:
			}
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New(otherwise)
}

// TestPowerCuts runs histories whose cuts follow each sync in turn. What it
// cannot do is show that it would notice: TestEverySyncMatters does, with the
// same histories.
func TestPowerCuts(t *testing.T) {
	var met siteCounts
	t.Run("histories", func(t *testing.T) {
		for _, c := range []struct {
			size  int
			seeds uint64
		}{{1, 48}, {3, 8}} {
			if long {
				c.seeds *= 25
			}
			for seed := range c.seeds {
				h := history{size: c.size, seed: seed, follow: followed(seed), sites: &met}
				t.Run(fmt.Sprintf("nodes=%d/seed=%d", c.size, seed), func(t *testing.T) {
					t.Parallel()
					require.NoError(t, h.run(t), "following %q", h.follow)
				})
			}
		}
	})
	require.Empty(t, met.unlisted(), "syncs that no test holds: list them")
}

// TestLogKeepsWhatItReadAfterAKill: what a log reads when it opens, after a
// kill -9 at any operation of its last life, is there after a power cut too,
// though nothing was written since.
func TestLogKeepsWhatItReadAfterAKill(t *testing.T) {
	seeds := uint64(60)
	if long {
		seeds = 1000
	}
	for seed := range seeds {
		require.NoError(t, logAfterKill(seed, "", nil), "seed %d", seed)
	}
}

// logAfterKill is one such history.
func logAfterKill(seed uint64, lie string, sites *siteCounts) error {
	rng := rand.New(rand.NewPCG(seed, 11))
	mem := vfs.NewMem(seed)
	if err := errors.Join(mem.MkdirAll("/node/log"), mem.SyncDir("/node"), mem.SyncDir("/")); err != nil {
		return err
	}
	plan := cutPlan{at: 20 + rng.IntN(200)}
	switch seed % 3 { // or where something is there that is not kept, and no process knows
	case 1:
		plan = cutBefore("sync /node/log/N-N.wal by walFile.Sync")
		plan.skip = rng.IntN(30)
	case 2:
		plan = cutBefore("syncdir /node/log by metaStore.commit")
		plan.skip = rng.IntN(8)
	}
	plan.kill = true
	first := &disk{mem: mem, rng: rng, plan: plan}
	l, err := raftstore.OpenLog(vfs.NewFault(mem, first.rule), "/node")
	if err != nil {
		return err
	}
	for i := uint64(1); i <= 60 && err == nil; i++ {
		err = l.Append(i, rng.IntN(6000))
		if i%7 == 0 {
			err = errors.Join(err, l.SetUint64([]byte("term"), i))
		}
	}
	if err = errors.Join(err, l.Close()); err != nil {
		return err
	}
	mem = first.cut()
	second := &disk{mem: mem, rng: rng, lie: lie, sites: sites}
	if l, err = raftstore.OpenLog(vfs.NewFault(mem, second.rule), "/node"); err != nil {
		return err
	}
	before, err := l.Sum()
	if err != nil {
		return err
	}
	after := second.cut()
	if err := l.Close(); err != nil {
		return err
	}
	if l, err = raftstore.OpenLog(after, "/node"); err != nil {
		return err
	}
	defer l.Close()
	now, err := l.Sum()
	if err == nil && now != before {
		err = fmt.Errorf("the log was read as %s, and is %s", before, now)
	}
	return err
}

// TestSnapshotReadAfterAKillStays: the newest snapshot that a node finds, after a
// kill -9 while it received some, is there after a power cut too.
func TestSnapshotReadAfterAKillStays(t *testing.T) {
	seeds := uint64(40)
	if long {
		seeds = 500
	}
	for seed := range seeds {
		require.NoError(t, snapshotsAfterKill(seed, ""), "seed %d", seed)
	}
}

// snapshotsAfterKill is one such history.
func snapshotsAfterKill(seed uint64, lie string) error {
	rng := rand.New(rand.NewPCG(seed, 13))
	mem := vfs.NewMem(seed)
	if err := errors.Join(mem.MkdirAll("/node/snapshots"), mem.MkdirAll("/files"), mem.SyncDir("/node"), mem.SyncDir("/")); err != nil {
		return err
	}
	stream, err := raftstore.StreamOf(mem, "/files", cluster, 1)
	if err != nil {
		return err
	}
	anySync := func(s string) bool { return s != "" }
	first := &disk{mem: mem, rng: rng, plan: cutPlan{kill: true, near: anySync, changes: 1 + rng.IntN(4)}}
	store, err := raftstore.OpenSnapshots(vfs.NewFault(mem, first.rule), "/node", cluster)
	for i := uint64(1); i <= 3 && err == nil; i++ {
		var sink raft.SnapshotSink
		if sink, err = store.Create(raft.SnapshotVersionMax, i, 1, raft.Configuration{}, 1, nil); err != nil {
			break
		}
		_, err = sink.Write(stream)
		err = errors.Join(err, sink.Close())
	}
	if err != nil {
		return err
	}
	mem = first.cut()
	second := &disk{mem: mem, rng: rng, lie: lie}
	before, err := newestSnapshot(vfs.NewFault(mem, second.rule))
	if err != nil {
		return err
	}
	now, err := newestSnapshot(second.cut())
	if err == nil && now != before {
		err = fmt.Errorf("the newest snapshot was read as %d, and is %d", before, now)
	}
	return err
}

// newestSnapshot returns the index of the newest snapshot, 0 if there is none.
func newestSnapshot(fsys vfs.FS) (uint64, error) {
	store, err := raftstore.OpenSnapshots(fsys, "/node", cluster)
	if err != nil {
		return 0, err
	}
	all, err := store.List()
	if err != nil || len(all) == 0 {
		return 0, err
	}
	return all[0].Index, nil
}

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

// life starts the node on mem, has it work when it leads, and cuts it as planned,
// or then. more is how often else a cut is drawn.
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

// idle is the life of a node of which nothing is wanted but that it starts.
func idle(*node) {}

// check demands what was acknowledged of disks that the last cut might have left.
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

// TestRestoreOverTheRemainsOfAnother: a power cut leaves the database of a
// restore that did not commit; the next start makes one of the same name, and is
// cut where it commits. CURRENT must not come to name what is left of the first.
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

// TestPowerCutsAroundASnapshot runs histories in which a node's power goes while
// it flushes its state and takes a snapshot.
func TestPowerCutsAroundASnapshot(t *testing.T) {
	seeds := uint64(30)
	if long {
		seeds = 400
	}
	for seed := range seeds {
		require.NoError(t, aroundASnapshot(t, seed, followed(seed), ""), "seed %d, following %q", seed, followed(seed))
	}
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
	seeds := uint64(30)
	if long {
		seeds = 800
	}
	for seed := range seeds {
		require.NoError(t, aroundARestore(t, seed, followed(seed), ""), "seed %d, following %q", seed, followed(seed))
	}
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
	cuts := 10
	if long {
		cuts = 100
	}
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
