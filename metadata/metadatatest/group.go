// Package metadatatest has what tests of the metadata service need: a
// replicated log in memory whose members share one state. There is no Raft, no
// disk and no clock in it, and no server should use it.
//
// One path through it: NewGroup -> Store("m1") is the NewStore of a
// metadata.Deps -> Elect("m1") makes that server the leader -> Elect("m2")
// moves the leadership, with nothing lost.
package metadatatest

import (
	"sync"
	"time"

	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statetest"
)

// Group is a replicated log without a network: one member leads, and applies an
// entry as soon as it is proposed. It may be used concurrently.
type Group struct {
	state   sync.Mutex // guards kv, applied and late; mu may be taken under it
	kv      *statetest.KV
	applied uint64
	late    [][]byte // entries that take effect before the next one

	mu      sync.Mutex // guards what follows
	term    uint64
	leader  string
	members map[string]*store
	entries int
	faults  Faults
}

// Faults are what goes wrong in a Group; the zero is nothing.
type Faults struct {
	// LowSpace is whether the disks of all members are nearly full.
	LowSpace bool
	// LoseReplies makes the next so many entries take effect and their
	// proposals fail.
	LoseReplies int
	// Late makes the proposals of the next n entries fail. The entries take effect
	// with the next one that is proposed to the same leader.
	Late int
	// Refuse makes the next so many entries fail without taking effect.
	Refuse int
	// Slow is how long each proposal waits before it takes effect.
	Slow time.Duration
}

// NewGroup returns a group without members and without a leader.
func NewGroup() *Group {
	return &Group{kv: statetest.NewKV(), members: make(map[string]*store)}
}

// Store returns what Deps.NewStore must be for the member id.
func (g *Group) Store(id string) func(metadata.FSM) (metadata.Store, error) {
	return func(fsm metadata.FSM) (metadata.Store, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		s := &store{g: g, id: id, fsm: fsm, changes: make(chan bool, 64)}
		g.members[id] = s
		return s, nil
	}
}

// Elect makes id the leader of a new term; "" for none. The members learn of it
// in their own time.
func (g *Group) Elect(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.members[g.leader]; m != nil {
		m.changes <- false
	}
	g.leader = id
	g.term++
	if m := g.members[id]; m != nil {
		m.changes <- true
	}
}

// Leader returns the member that leads, "" if none does.
func (g *Group) Leader() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leader
}

// Fail has f go wrong from now on, and nothing else.
func (g *Group) Fail(f Faults) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = f
}

// View calls fn with the state that the group agrees on.
func (g *Group) View(fn func(r kvtx.Reader)) {
	g.state.Lock()
	defer g.state.Unlock()
	fn(g.kv)
}

// Entries returns how many entries were applied.
func (g *Group) Entries() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries
}
