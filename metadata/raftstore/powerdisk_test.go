package raftstore_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// site names a sync as TestEverySyncMatters sees it: what it is, of which kind
// of file, and by whom: the function of package raftstore that asks for it,
// "pebble", or "marker" for the sync that pebblevfs adds. It is called in the
// goroutine that makes the call. "" for every other call.
func site(op vfs.Op) string {
	if op.Kind != vfs.OpSync && op.Kind != vfs.OpSyncDir {
		return ""
	}
	return fmt.Sprintf("%s %s by %s", op.Kind, numbers.ReplaceAllString(op.Path, "N"), caller())
}

var numbers = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)

// forMany are functions that sync for several others, which a site then names.
var forMany = []string{"replaceFile", "writeSynced", "copySynced"}

// caller returns by whom the file system was called.
func caller() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		_, name, ours := strings.Cut(f.Function, "moraine/metadata/raftstore.")
		switch {
		case strings.Contains(f.Function, "pebblevfs.ordered.syncDir"):
			return "marker"
		case strings.Contains(f.Function, "cockroachdb/pebble/"):
			return "pebble"
		case ours:
			if name = funcName(name); !slices.Contains(forMany, name) {
				return name
			}
		case !more:
			return "nobody"
		}
	}
}

// funcName turns "(*stateDB).open.func1" into "stateDB.open".
func funcName(name string) string {
	name = strings.NewReplacer("(*", "", ")", "").Replace(name)
	return closures.ReplaceAllString(name, "")
}

var closures = regexp.MustCompile(`(\.func\d+|\.\d+|\.gowrap\d+)+$`)

// siteCounts counts the syncs of each site.
type siteCounts struct {
	mu    sync.Mutex
	sites map[string]int
}

func (c *siteCounts) add(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sites == nil {
		c.sites = map[string]int{}
	}
	c.sites[s]++
}

func (c *siteCounts) sorted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.sites))
}

// cutPlan says when a disk loses its power. The zero plan is the end of the
// life.
type cutPlan struct {
	// at is the operation before which it goes; 0: none.
	at int
	// near is a sync near which it goes, when skip of its kind were passed: before
	// the ops-th operation from there, or right after the changes-th change of a
	// name from there, whichever is not 0; right before that sync, if both are.
	near               func(site string) bool
	skip, ops, changes int
	// kill: no power cut, but the end of the process, as by kill -9. again: the
	// node comes back in the same life, with next as its plan.
	kill, again bool
	next        *cutPlan
}

// soonAfter draws a plan to cut soon after a sync.
func soonAfter(rng *rand.Rand, follow string) cutPlan {
	p := cutPlan{near: func(s string) bool { return s == follow }, skip: rng.IntN(2) * rng.IntN(4)}
	switch rng.IntN(6) {
	case 0, 1:
		p.ops = 1 + rng.IntN(4)
	case 2:
		p.ops = 1 + rng.IntN(1<<(1+rng.IntN(6)))
	default:
		p.changes = 1 + rng.IntN(6)
	}
	return p
}

// killBefore draws a plan to kill the process right before a sync of the same file as follow, by
// any caller. The unsynced bytes still exist for the next process, but are not durable.
func killBefore(rng *rand.Rand, follow string) cutPlan {
	file, _, _ := strings.Cut(follow, " by ")
	var same []string
	for _, s := range slices.Sorted(maps.Keys(syncs)) {
		if of, _, _ := strings.Cut(s, " by "); of == file {
			same = append(same, s)
		}
	}
	which := same[rng.IntN(len(same))]
	return cutPlan{kill: true, skip: rng.IntN(2) * rng.IntN(4), near: func(s string) bool { return s == which }}
}

// cutBefore plans a cut right before a sync.
func cutBefore(which string) cutPlan {
	return cutPlan{near: func(s string) bool { return s == which }}
}

// from makes a plan wait for another sync first.
func (p *cutPlan) from(first string) {
	near, met := p.near, false
	p.near = func(s string) bool {
		met = met || s == first
		return met && near(s)
	}
}

// planCut draws a plan for one life. Most cuts at a random instant would fall between two relevant
// moments, so most plans follow a sync. The drawing does not depend on whether a sync is left out.
// In a history of kills, every second life leaves something for the next to make durable.
func planCut(rng *rand.Rand, follow string, life int, kills bool) cutPlan {
	switch n := rng.IntN(8); {
	case n == 0:
		return cutPlan{at: 1 + rng.IntN(700), kill: rng.IntN(2) == 0}
	case n == 1:
		return cutPlan{}
	case n == 2 && kills:
		p, then := killBefore(rng, follow), soonAfter(rng, follow)
		p.again, p.next = true, &then
		return p
	case kills && life%2 == 1:
		return killBefore(rng, follow)
	}
	p := soonAfter(rng, follow)
	if kills {
		p.skip = 0
	}
	return p
}

// disk is the disk of one node in one life. Its power is cut as planned or at the end, and it may
// lie about syncs.
type disk struct {
	mem    *vfs.Mem
	rng    *rand.Rand // of what a cut leaves
	lie    string     // site of the syncs that are dropped
	sites  *siteCounts
	before func() // called before the cut; may be nil
	more   int    // how often else a cut is drawn at that instant

	mu    sync.Mutex
	ops   int
	plan  cutPlan
	after *vfs.Mem // what the cut left
	also  []*vfs.Mem
}

func (d *disk) rule(op vfs.Op) error {
	s := site(op)
	if s != "" && d.sites != nil {
		d.sites.add(s)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ops++; d.ops == d.plan.at {
		d.cutLocked()
	}
	d.follow(op, s)
	if s != "" && s == d.lie {
		return vfs.Drop
	}
	return nil
}

// follow sees to a plan that waits for a sync.
func (d *disk) follow(op vfs.Op, s string) {
	p := &d.plan
	switch {
	case p.near != nil && s != "" && p.near(s):
		if p.skip--; p.skip >= 0 {
			return
		}
		p.near = nil
		switch {
		case p.ops > 0:
			p.at = d.ops + p.ops
		case p.changes == 0:
			d.cutLocked()
		}
	case p.near == nil && p.changes > 0 && changesNames(op.Kind):
		if p.changes--; p.changes == 0 {
			p.at = d.ops + 1
		}
	}
}

func changesNames(k vfs.OpKind) bool {
	return k == vfs.OpRename || k == vfs.OpLink || k == vfs.OpRemove || k == vfs.OpRemoveAll
}

func (d *disk) cutLocked() {
	if d.after != nil {
		return
	}
	if d.before != nil {
		d.before()
	}
	if d.plan.kill {
		d.after = d.mem.Clone()
		return
	}
	d.after = d.mem.Crash(d.rng)
	for range d.more {
		d.also = append(d.also, d.mem.Crash(d.rng))
	}
}

func (d *disk) cut() *vfs.Mem {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cutLocked()
	return d.after
}

// count returns how many operations were begun.
func (d *disk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops
}

// revivable says whether the node is to come back in this life.
func (d *disk) revivable() bool { return d.isCut() && d.plan.again }

func (d *disk) isCut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.after != nil
}

// loseState deletes a node's state if it has a snapshot: the snapshot, and the log after it, must
// then have everything.
func loseState(mem *vfs.Mem) error {
	names, err := mem.List("/node/snapshots")
	if err != nil || !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "snap-") }) {
		return nil
	}
	dir := "/node/state"
	if err := mem.RemoveAll(dir); err != nil {
		return err
	}
	if err := mem.MkdirAll(dir); err != nil {
		return err
	}
	return mem.SyncDir(path.Dir(dir))
}

// ledger records what proposers were answered.
type ledger struct {
	mu    sync.Mutex
	acked map[string]uint64 // counter -> highest value acknowledged
	asked map[string]uint64 // counter -> proposals made
	kept  map[string]uint64 // acked, as of the first cut
	// frozen: a cut has come since the last check began.
	frozen bool
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

// freeze records what must survive: everything acknowledged before the first cut.
func (l *ledger) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = true
	if l.kept == nil {
		l.kept = maps.Clone(l.acked)
	}
}

// check compares a state with the ledger, which then continues from it. Nobody proposes meanwhile;
// a cut may happen while it reads.
func (l *ledger) check(r kvtx.Reader) error {
	l.mu.Lock()
	l.frozen = false
	keys := slices.Collect(maps.Keys(l.asked))
	l.mu.Unlock()
	found := map[string]uint64{}
	for _, key := range keys {
		value, there, err := r.Get([]byte(key))
		if err != nil {
			return err
		}
		if there {
			found[key] = binary.BigEndian.Uint64(value)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		if n := found[key]; n < l.kept[key] || n > l.asked[key] {
			return fmt.Errorf("%s is %d: %d was acknowledged, %d were asked for", key, n, l.kept[key], l.asked[key])
		}
	}
	if l.frozen {
		return nil // what was acknowledged before stands until the next check
	}
	l.acked, l.kept = found, nil
	return nil
}
