package raftstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// padFSM is kvFSM whose entries may carry padding after a "|".
type padFSM struct{ kvFSM }

func (f padFSM) ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error) {
	command, _, _ := strings.Cut(string(entry), "|")
	return f.kvFSM.ApplyEntry(kv, index, []byte(command))
}

// history is a group of nodes through several lives. Each life ends with a power cut of all, or
// with a kill -9, at an operation that the seed chooses.
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

// kills and restores say which kind of history the seed chooses: those in which a killed process
// leaves unsynced work to the next, and those in which every second life restores the state from a
// snapshot.
func (h *history) kills() bool    { return h.seed/2%2 == 1 }
func (h *history) restores() bool { return h.seed/4%2 == 1 }

// lives is how many a history has; the last one only looks at what the others
// left, and works a little.
const lives = 5

// run returns the first broken promise. Failed proposals are normal; a node that does not start
// again is not.
func (h *history) run(t *testing.T) error {
	return inBubble(t, fmt.Sprintf("among %d nodes, seed %d", h.size, h.seed), h.live)
}

// inBubble runs a history in a bubble. A node that pebble broke leaves goroutines, for which
// synctest panics at the end of the bubble, so the broken promise is reported before.
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

// end cuts all disks and stops all nodes. A node that ended by itself has broken a promise, unless
// err shows an earlier one.
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
		h.g.net.isolate(name, true) // no other node receives what it does on a disk that is gone
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

// oneLife starts the group, checks what the last life left, and works until a disk is cut or the
// work is done. One node of three may start late and need a snapshot because the log was truncated.
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
	if err := n.store.View(func(r kvtx.Reader, _ uint64) error { return h.book.check(r) }); err != nil {
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

// wait returns nil when cond holds or the life is about to end, and an error when a node ends.
// Nodes that must come back do so while it waits.
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

// TestPowerCuts runs histories whose cuts follow each sync in turn. TestEverySyncMatters shows,
// with the same histories, that it would notice a missing sync.
func TestPowerCuts(t *testing.T) {
	var met siteCounts
	t.Run("histories", func(t *testing.T) {
		for _, c := range []struct {
			size        int
			short, long uint64
		}{{1, 24, 1200}, {3, 5, 200}} {
			for _, seed := range testseed.Seeds(t, c.short, c.long) {
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

// TestLogKeepsWhatItReadAfterAKill: what a log reads when it opens, after a kill -9 at any
// operation of its last life, still exists after a power cut, although nothing was written since.
func TestLogKeepsWhatItReadAfterAKill(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 30, 1000) {
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

// TestSnapshotReadAfterAKillStays: the newest snapshot that a node finds, after a kill -9 while it
// received some, still exists after a power cut.
func TestSnapshotReadAfterAKillStays(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 20, 500) {
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
