// Package memnet is a network inside one process. Tests run whole clusters over it,
// with delays, lost requests, lost replies and partitions on command. Its semantics
// are those of package transport's real network: messages arrive as copies, and
// payloads come in pieces. Handlers see the caller's Peer and deadline, and nothing
// writes to a caller's buffer after its call has returned. It does not imitate
// bandwidth, queues, or the limits of connections.
//
// One path through it, a request: `(*Net).Dialer` returns a caller's
// transport.Dialer. A call draws its fate from the link's Faults and the net's
// seed. The handler of the target Node runs on a goroutine of its own. The reply
// draws its fate too, and is copied to the caller.
//
// Time is that of package time, so that testing/synctest works. Random
// decisions come from one source in the order of the calls. A test with a fixed
// order of calls sees the same faults for the same seed.
package memnet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
)

// Faults is what may happen to messages from one node to another.
type Faults struct {
	// Each message takes a time drawn evenly from MinDelay to MaxDelay.
	MinDelay, MaxDelay time.Duration
	// LoseRequest is the share (0 to 1) of requests that are lost before they take
	// effect.
	LoseRequest float64
	// LoseReply is the share of replies that are lost: the request takes effect,
	// and its caller does not know.
	LoseReply float64
}

// prefix begins the addresses of this network.
const prefix = "mem:"

// anyNode matches every node in SetFaults.
const anyNode = "*"

type link struct{ from, to string }

// Net is an in-process network. All methods may be called concurrently, and faults
// changed at any time. They apply to messages sent from then on; partitions also
// apply to those in flight.
type Net struct {
	seed uint64
	wg   sync.WaitGroup // handlers

	mu      sync.Mutex // guards the fields below
	rng     *rand.Rand
	nodes   map[string]*Node
	faults  map[link]Faults
	cut     map[link]bool
	detect  time.Duration
	changed chan struct{} // closed and replaced when cut or nodes change
}

// New returns a network without nodes or faults.
func New(seed uint64) *Net {
	return &Net{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x6d6f7261696e65)), nodes: make(map[string]*Node),
		faults: make(map[link]Faults), cut: make(map[link]bool), detect: 20 * time.Millisecond, changed: make(chan struct{})}
}

// Seed returns the seed of New, for a failing test to print.
func (n *Net) Seed() uint64 { return n.seed }

// Address returns the address of a node, whether it listens or not.
func Address(node string) string { return prefix + node }

// NodeAt is the inverse of Address; it also accepts a bare node id.
func NodeAt(addr string) string { return strings.TrimPrefix(addr, prefix) }

// DetectAfter sets how long a caller waits after a loss or in a partition (20 ms).
// Then it treats the connection as lost and returns Unavailable.
func (n *Net) DetectAfter(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.detect = d
}

// SetFaults sets the faults from one node to another; "*" stands for every node.
// The most specific setting counts: (from, to), then (from, *), (*, to), (*, *).
// The zero Faults is a perfect link.
func (n *Net) SetFaults(from, to string, f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[link{from, to}] = f
}

// Cut stops messages from one node to another, but not back.
func (n *Net) Cut(from, to string) {
	n.setCut(true, link{from, to})
}

// Partition stops all traffic between two nodes.
func (n *Net) Partition(a, b string) {
	n.setCut(true, link{a, b}, link{b, a})
}

// Isolate stops all traffic of a node with all others.
func (n *Net) Isolate(node string) {
	n.setCut(true, link{node, anyNode}, link{anyNode, node})
}

// Rejoin undoes Cut, Partition and Isolate between two nodes or, with b "*", all
// those of a.
func (n *Net) Rejoin(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.cut {
		if l == (link{a, b}) || l == (link{b, a}) || b == anyNode && (l.from == a || l.to == a) {
			delete(n.cut, l)
		}
	}
	n.changeLocked()
}

// Heal ends all faults and partitions.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	clear(n.faults)
	n.changeLocked()
}

func (n *Net) setCut(v bool, links ...link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range links {
		n.cut[l] = v
	}
	n.changeLocked()
}

// changeLocked wakes all waits for a change of the network.
func (n *Net) changeLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// state returns whether the path from one node to another is cut, and a channel
// that is closed when that may have changed.
func (n *Net) state(from, to string) (cut bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cutLocked(from, to), n.changed
}

func (n *Net) cutLocked(from, to string) bool {
	if from == to {
		return false
	}
	return n.cut[link{from, to}] || n.cut[link{from, anyNode}] || n.cut[link{anyNode, to}]
}

// fate is the drawn outcome of one message.
type fate struct {
	delay time.Duration
	lost  bool
}

// draw draws the fate of one message from one node to another.
func (n *Net) draw(from, to string, loss func(Faults) float64) fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.faultsLocked(from, to)
	var d fate
	if d.delay = f.MinDelay; f.MaxDelay > f.MinDelay {
		d.delay += time.Duration(n.rng.Int64N(int64(f.MaxDelay - f.MinDelay)))
	}
	if p := loss(f); p > 0 {
		d.lost = n.rng.Float64() < p
	}
	return d
}

func (n *Net) faultsLocked(from, to string) Faults {
	for _, l := range []link{{from, to}, {from, anyNode}, {anyNode, to}, {anyNode, anyNode}} {
		if f, ok := n.faults[l]; ok {
			return f
		}
	}
	return Faults{}
}

func (n *Net) detectAfter() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.detect
}

// node returns the node that listens at addr.
func (n *Net) node(addr string) *Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[NodeAt(addr)]
}

// Wait returns when no handler runs. Call it after all nodes are closed.
func (n *Net) Wait() { n.wg.Wait() }

// Options is what a node offers to its callers.
type Options struct {
	Role    transport.Role
	Cluster moraine.UUID // zero accepts callers of any
	// Handler serves requests. A node without one has only a raft listener.
	Handler transport.Handler
	// Keys, if not nil, makes the node require session tokens on bulk requests from
	// all callers but servers, as a real one does.
	Keys transport.Keys
}

// Listen adds a node to the network. It returns Exists while a node of that id
// listens.
func (n *Net) Listen(id string, opts Options) (*Node, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nodes[id] != nil {
		return nil, &moraine.Error{Op: "memnet.Listen", Ref: id, Kind: moraine.Exists, Err: fmt.Errorf("node already listens")}
	}
	node := newNode(n, id, opts)
	n.nodes[id] = node
	n.changeLocked()
	return node, nil
}
