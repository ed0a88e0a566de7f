package raftstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
)

// long asks for the tests that take minutes.
var long = os.Getenv("MORAINE_TEST_LONG") != ""

// site is a sync as the teeth test sees it: what, and of which kind of file.
func site(op vfs.Op) string {
	return op.Kind.String() + " " + numbers.ReplaceAllString(op.Path, "N")
}

var numbers = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)

// disk is the disk of one node: it may cut its power before any operation, and
// may lie about syncs.
type disk struct {
	mem *vfs.Mem
	rng *rand.Rand
	lie string // site of the syncs that are dropped

	mu     sync.Mutex
	ops    int
	cutAt  int // operation before which the power goes; 0: never
	before func()
	after  *vfs.Mem // what the cut left
	sites  map[string]int
}

func (d *disk) rule(op vfs.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ops++; d.ops == d.cutAt {
		d.cutLocked()
	}
	if op.Kind != vfs.OpSync && op.Kind != vfs.OpSyncDir {
		return nil
	}
	s := site(op)
	if d.sites != nil {
		d.sites[s]++
	}
	if s == d.lie {
		return vfs.Drop
	}
	return nil
}

func (d *disk) cutLocked() {
	if d.after == nil {
		if d.before != nil {
			d.before()
		}
		d.after = d.mem.Crash(d.rng)
	}
}

func (d *disk) cut() *vfs.Mem {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cutLocked()
	return d.after
}

func (d *disk) isCut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.after != nil
}

// ledger is what proposers were told.
type ledger struct {
	mu    sync.Mutex
	acked map[string]uint64 // counter -> highest value acknowledged
	asked map[string]uint64 // counter -> proposals made
	kept  map[string]uint64 // acked, as of the first cut
}

func newLedger() *ledger {
	return &ledger{acked: map[string]uint64{}, asked: map[string]uint64{}}
}

func (l *ledger) ask(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[key]++
}

func (l *ledger) ack(key string, n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[key] = max(l.acked[key], n)
}

// freeze notes what must survive: what was acknowledged before the first cut.
func (l *ledger) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept != nil {
		return
	}
	l.kept = map[string]uint64{}
	for k, n := range l.acked {
		l.kept[k] = n
	}
}

// check holds a state against the ledger, and the ledger then goes on from it.
func (l *ledger) check(r state.Reader) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.asked {
		value, there, err := r.Get([]byte(key))
		if err != nil {
			return err
		}
		var n uint64
		if there {
			n = binary.BigEndian.Uint64(value)
		}
		if n < l.kept[key] || n > l.asked[key] {
			return fmt.Errorf("%s is %d: %d was acknowledged, %d were asked for", key, n, l.kept[key], l.asked[key])
		}
		l.acked[key] = n
	}
	l.kept = nil
	return nil
}

// padFSM is kvFSM whose entries may carry padding after a "|".
type padFSM struct{ kvFSM }

func (f padFSM) ApplyEntry(kv state.KV, index uint64, entry []byte) (any, error) {
	command, _, _ := strings.Cut(string(entry), "|")
	return f.kvFSM.ApplyEntry(kv, index, []byte(command))
}

// powerCuts runs a group of size nodes through three lives, each of which ends
// with the power of all at a random operation, and returns the first promise
// that was broken. Errors of proposals are part of life; a node that does not
// start again is not.
func powerCuts(t testing.TB, size int, seed uint64, lie string, sites map[string]int) error {
	rng := rand.New(rand.NewPCG(seed, uint64(size)))
	g := newGroup(t, size, func(_ string, cfg *raftstore.Config) {
		cfg.LogRetention = time.Nanosecond
		cfg.SnapshotEntries = 1 << 60
	})
	defer g.stopAll()
	g.fsm = padFSM{}
	mems := map[string]*vfs.Mem{}
	for _, name := range g.names {
		mems[name] = g.fs[name].(*vfs.Mem)
	}
	book := newLedger()
	for life := range 4 {
		disks := map[string]*disk{}
		for i, name := range g.names {
			d := &disk{mem: mems[name], rng: rand.New(rand.NewPCG(seed, uint64(100*life+i))), lie: lie, sites: sites, before: book.freeze}
			if rng.IntN(size) == 0 {
				d.cutAt = 1 + rng.IntN(700)
			}
			disks[name] = d
			g.fs[name] = vfs.NewFault(d.mem, d.rule)
		}
		err := oneLife(g, rng, disks, book, life)
		for _, name := range g.names {
			mems[name] = disks[name].cut()
		}
		g.stopAll()
		if err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
		for _, name := range g.names {
			if rng.IntN(2) == 0 {
				if err := loseState(mems[name]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// loseState takes a node's state away if it has a snapshot: then that, and the
// log after it, must hold everything.
func loseState(mem *vfs.Mem) error {
	names, err := mem.List("/node/snapshots")
	if err != nil || !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "snap-") }) {
		return nil
	}
	return errors.Join(mem.RemoveAll("/node/state"), mem.MkdirAll("/node/state"), mem.SyncDir("/node"))
}

// oneLife starts the group, checks what the last life left, and works until a
// disk is cut or the work is done.
func oneLife(g *group, rng *rand.Rand, disks map[string]*disk, book *ledger, life int) error {
	anyCut := func() bool {
		return slices.ContainsFunc(g.names, func(name string) bool { return disks[name].isCut() })
	}
	for _, name := range g.names {
		if err := raftstore.Bootstrap(g.config(name), g.deps(name)); err != nil {
			return fmt.Errorf("bootstrap %s: %w", name, err)
		}
	}
	g.startAll()
	n, err := waitLeader(g, anyCut)
	if n == nil || err != nil {
		return err
	}
	if err := n.store.ReadBarrier(ctxFor(20 * time.Second)); err != nil {
		return nil // cut, or led by another by now: the next life checks
	}
	if err := n.store.View(func(r state.Reader, _ uint64) error { return book.check(r) }); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for w := range 3 {
		work := rng.IntN(60)
		pad := strings.Repeat("x", rng.IntN(3000))
		wg.Go(func() {
			for i := 0; i < work && !anyCut(); i++ {
				key := fmt.Sprintf("life%d-worker%d", life, w)
				book.ask(key)
				result, err := n.store.Propose(ctxFor(20*time.Second), []byte("add "+key+"|"+pad))
				if err == nil {
					book.ack(key, result.(uint64))
				}
			}
		})
	}
	snapshots := rng.IntN(3)
	wg.Go(func() {
		for range snapshots {
			n.store.TakeSnapshot() // may fail: the node may be on its way out
		}
	})
	wg.Wait()
	return nil
}

// waitLeader returns nil if a disk is cut first.
func waitLeader(g *group, anyCut func() bool) (*node, error) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, n := range g.nodes {
			select {
			case err := <-n.ended:
				n.ended <- nil
				if err != nil && !anyCut() {
					return nil, fmt.Errorf("%s ended: %w", n.name, err)
				}
			default:
			}
			if _, leads := n.store.Leader(); leads {
				return n, nil
			}
		}
		if anyCut() {
			return nil, nil
		}
	}
	return nil, errors.New("nobody leads")
}

func TestPowerCuts(t *testing.T) {
	for _, c := range []struct {
		size  int
		seeds uint64
	}{{1, 100}, {3, 25}} {
		if long {
			c.seeds *= 20
		}
		for seed := range c.seeds {
			t.Run(fmt.Sprintf("nodes=%d/seed=%d", c.size, seed), func(t *testing.T) {
				t.Parallel()
				require.NoError(t, powerCuts(t, c.size, seed, "", nil))
			})
		}
	}
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
	g.start("m1")
	g.start("m2")
	for i := range 200 {
		g.propose(fmt.Sprintf("set k%d %01000d", i, i))
	}
	for _, n := range g.nodes {
		eventually(t, "both have all", func() bool { return n.get("k199") != "" })
		require.NoError(t, n.store.TakeSnapshot())
	}
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
	const cuts = 25
	total := 0
	for i := range cuts + 1 {
		d := &disk{mem: bare.Crash(rng), rng: rng}
		if i > 0 {
			d.cutAt = 1 + total*(i-1)/cuts + rng.IntN(total/cuts)
		}
		g.fs["m3"] = vfs.NewFault(d.mem, d.rule)
		g.start("m3")
		eventually(t, "it joins or is cut", func() bool { return d.isCut() || joined() })
		if i == 0 {
			total = d.ops
			require.NotZero(t, g.nodes["m3"].store.Status().Snapshot, "it came by a snapshot")
		}
		g.halt("m3")
		g.fs["m3"] = d.cut()
		g.start("m3")
		eventually(t, fmt.Sprintf("it joins after a cut at operation %d of %d", d.cutAt, total), joined)
		require.Equal(t, fmt.Sprintf("%01000d", 77), g.nodes["m3"].get("k77"))
		require.NoError(t, g.halt("m3"))
	}
}

// redundant are the syncs whose loss no power cut can show, each with why. All
// other syncs are held by TestEverySyncMatters.
var redundant = map[string]string{
	"sync /node/PROBE": "nothing reads it: the sync is there to take its time before raft may start",

	"sync /node/state/db-N/marker.format-version.N.N":            emptyFile,
	"sync /node/state/db-N/marker.manifest.N.MANIFEST-N":         emptyFile,
	"sync /node/snapshots/tmp-N/db/marker.format-version.N.N":    emptyFile,
	"sync /node/snapshots/tmp-N/db/marker.manifest.N.MANIFEST-N": emptyFile,
}

const emptyFile = "the file is empty: its name says all, and the sync of the directory keeps that"

// TestEverySyncMatters drops the syncs of one site at a time and demands that
// the power cuts then break a promise.
func TestEverySyncMatters(t *testing.T) {
	if lie := os.Getenv("RAFTSTORE_LIE"); lie != "" {
		for seed := range uint64(300) {
			size := 1
			if seed%4 == 3 {
				size = 3
			}
			if err := powerCuts(t, size, seed, lie, nil); err != nil {
				fmt.Printf("CAUGHT with %d nodes, seed %d: %v\n", size, seed, err)
				os.Exit(3)
			}
		}
		return
	}
	if !long {
		t.Skip("MORAINE_TEST_LONG is not set")
	}
	sites := map[string]int{}
	for seed := range uint64(20) {
		require.NoError(t, powerCuts(t, 1, seed, "", sites))
	}
	for _, s := range slices.Sorted(maps.Keys(sites)) {
		t.Run(s, func(t *testing.T) {
			if why := redundant[s]; why != "" {
				t.Skip(why)
			}
			// In a process of its own: a broken promise may show as a panic.
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestEverySyncMatters$")
			cmd.Env = append(os.Environ(), "RAFTSTORE_LIE="+s)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "no power cut showed that %q was dropped", s)
			require.NoError(t, ctx.Err())
			if i := strings.Index(string(out), "CAUGHT"); i >= 0 {
				t.Log(strings.TrimSpace(string(out[i:])))
			} else {
				t.Logf("%.600s", out)
			}
		})
	}
}
