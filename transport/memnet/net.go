// Package memnet is a network inside one process: whole clusters run in a test
// over it, with delays, lost requests, lost replies and partitions that the
// test commands. It has the semantics of package transport's own network:
// messages arrive as copies, payloads come in pieces, handlers see the caller's
// Peer and deadline, and nothing writes into a caller's buffer after its call
// has returned.
//
// It does not imitate bandwidth, queues, or the limits of connections.
//
// The path of a request: `(*Net).Dialer` gives a caller's transport.Dialer ->
// a call draws its fate from the link's Faults and the net's seed -> the
// handler of the Node that it names runs on a goroutine of its own -> the reply
// draws its fate too, and is copied out to the caller.
//
// Time is the package time's, so that testing/synctest works. Random decisions
// are drawn from one source in the order in which calls ask; a test whose calls
// come in a fixed order sees the same faults for the same seed.
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

// Faults is what may happen on the way from one node to another.
type Faults struct {
	// Each message takes a time drawn evenly from MinDelay to MaxDelay.
	MinDelay, MaxDelay time.Duration
	// LoseRequest is the share (0 to 1) of requests that are lost before they
	// take effect.
	LoseRequest float64
	// LoseReply is the share of replies that are lost: the request took effect,
	// its caller does not know.
	LoseReply float64
}

// prefix begins the addresses of this network.
const prefix = "mem:"

// any matches every node in SetFaults.
const anyNode = "*"

type link struct{ from, to string }

// Net is an in-process network. All methods may be called concurrently, faults
// at any time: they govern what is sent from then on, and partitions also what
// is under way.
type Net struct {
	seed uint64
	wg   sync.WaitGroup // handlers

	mu      sync.Mutex // guards what follows
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

// Seed returns what New was given, for a failing test to print.
func (n *Net) Seed() uint64 { return n.seed }

// Address returns the address of a node, whether it listens or not.
func Address(node string) string { return prefix + node }

// NodeAt is the opposite of Address; it takes a bare node id too.
func NodeAt(addr string) string { return strings.TrimPrefix(addr, prefix) }

// DetectAfter sets how long a caller waits on a loss or a partition before it
// takes the connection for lost and gets Unavailable (20 ms).
func (n *Net) DetectAfter(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.detect = d
}

// SetFaults sets what happens on the way from one node to another; "*" stands
// for every node. The most specific setting counts: (from, to), then (from, *),
// (*, to), (*, *). The zero Faults is a perfect link.
func (n *Net) SetFaults(from, to string, f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[link{from, to}] = f
}

// Cut stops what goes from one node to another, but not back.
func (n *Net) Cut(from, to string) {
	n.setCut(true, link{from, to})
}

// Partition stops all traffic between two nodes.
func (n *Net) Partition(a, b string) {
	n.setCut(true, link{a, b}, link{b, a})
}

// Isolate stops all traffic of a node with any other.
func (n *Net) Isolate(node string) {
	n.setCut(true, link{node, anyNode}, link{anyNode, node})
}

// Rejoin undoes Cut, Partition and Isolate between two nodes, or, with b "*",
// everything about a.
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

// changeLocked wakes everything that waits on the shape of the network.
func (n *Net) changeLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// state returns whether the way from one node to another is cut, and a channel
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

// fate is what was drawn for one message.
type fate struct {
	delay time.Duration
	lost  bool
}

// draw decides on one message from one node to another.
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

// Wait returns when no handler runs any more. Call it when all nodes are closed.
func (n *Net) Wait() { n.wg.Wait() }

// Options is what a node is to its callers.
type Options struct {
	Role    transport.Role
	Cluster moraine.UUID // zero takes callers of any
	// Handler serves requests. A node without one has only a raft listener.
	Handler transport.Handler
	// Keys, if not nil, makes the node demand session tokens on bulk requests
	// of everybody but servers, as a real one does.
	Keys transport.Keys
}

// Listen puts a node onto the network. It fails with Exists while a node of
// that id is there.
func (n *Net) Listen(id string, opts Options) (*Node, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nodes[id] != nil {
		return nil, &moraine.Error{Op: "memnet.Listen", Ref: id, Kind: moraine.Exists, Err: fmt.Errorf("it listens already")}
	}
	node := newNode(n, id, opts)
	n.nodes[id] = node
	n.changeLocked()
	return node, nil
}
