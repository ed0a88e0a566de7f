package incluster

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine/internal/vfs"
)

// power cuts nodes at one moment. Every call of a file system passes the gate
// before it runs. A cut holds the gate closed while it disconnects the nodes
// and clones what their disks would keep. So every operation of a disk after
// the moment also began after it. Nothing that began before it can depend on an
// operation after it. The clones together are a state that a cut of all nodes
// at once leaves. After that, a node writes to a disk that nobody will open,
// and its messages reach nobody.
type power struct {
	gate sync.RWMutex
	ops  atomic.Int64
	cut  atomic.Pointer[plannedCut]
}

// plannedCut cuts nodes before the operation with a number.
type plannedCut struct {
	at    int64
	nodes []*node
	done  chan struct{}
}

// pass is called before each call of a life's file system. It counts the call, and
// makes the planned cut if it is due.
func (p *power) pass(l *life) {
	p.gate.RLock()
	gone := l.gone.Load()
	p.gate.RUnlock()
	if gone {
		return
	}
	at := p.ops.Add(1)
	if cut := p.cut.Load(); cut != nil && at >= cut.at && p.cut.CompareAndSwap(cut, nil) {
		p.end(cut.nodes, (*node).crash)
		close(cut.done)
	}
}

// end ends the current lives of nodes at one moment, and leaves returns what each
// disk then holds. The disk of a node that is down is what an earlier end left.
func (p *power) end(nodes []*node, leaves func(n *node, disk *vfs.Mem) *vfs.Mem) {
	p.gate.Lock()
	defer p.gate.Unlock()
	for _, n := range nodes {
		n.leave()
	}
	for _, n := range nodes {
		l := n.current()
		if l.left == nil {
			l.left = n.mem
		}
		l.left = leaves(n, l.left)
	}
}

// crash is what a power cut leaves.
func (n *node) crash(disk *vfs.Mem) *vfs.Mem { return disk.Crash(n.rng) }

// clone is what the end of a process leaves.
func (n *node) clone(disk *vfs.Mem) *vfs.Mem { return disk.Clone() }

// Ops returns how many file operations the nodes have begun.
func (c *Cluster) Ops() int64 { return c.power.ops.Load() }

// PowerCut cuts the power of the named nodes (of all, if none are) at one moment.
// All synced data survives, and any subset of the rest.
func (c *Cluster) PowerCut(ids ...string) { c.power.end(c.named(ids), (*node).crash) }

// PowerCutAfter plans a PowerCut before the n-th file operation from now, of any
// node. The channel is closed when it has happened. A later plan, or CancelCut,
// replaces it.
func (c *Cluster) PowerCutAfter(n int, ids ...string) <-chan struct{} {
	p := &plannedCut{at: c.power.ops.Load() + int64(n), nodes: c.named(ids), done: make(chan struct{})}
	c.power.cut.Store(p)
	return p.done
}

// CancelCut drops a planned cut that has not happened.
func (c *Cluster) CancelCut() { c.power.cut.Store(nil) }

// Kill ends the processes of nodes like kill -9: at once, with everything that they
// wrote still there, synced or not. A later power cut loses what was not synced.
func (c *Cluster) Kill(ids ...string) { c.power.end(c.named(ids), (*node).clone) }

// StopNode ends a node as a signal does, in its own time, so that a leader hands
// over; Restart starts it again.
func (c *Cluster) StopNode(id string) {
	for _, n := range c.named([]string{id}) {
		n.stop()
		n.wait()
	}
}

// Restart starts the named nodes (all, if none are) that are down, on what is left
// of their disks. It returns when the rest of their processes has ended and the new
// ones have begun.
func (c *Cluster) Restart(ids ...string) error {
	for _, n := range c.named(ids) {
		l := n.current()
		if l != nil && !l.gone.Load() {
			continue
		}
		n.wait()
		c.power.gate.RLock()
		if l != nil && l.left != nil {
			n.mem = l.left
		}
		c.power.gate.RUnlock()
		c.Net.Rejoin(n.id, "*")
		if err := n.start(); err != nil {
			return fmt.Errorf("start %s: %w", n.id, err)
		}
	}
	return nil
}
