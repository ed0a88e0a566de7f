package incluster

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine/internal/vfs"
)

// power cuts nodes at one instant. Every call of a file system passes the gate
// before it runs, and a cut holds the gate closed while it takes the nodes off
// the network and clones what their disks would keep. So whatever a disk does
// after the instant began before it, and what began before it cannot depend on
// anything that any disk did after it: the clones together are a state that a
// cut of all nodes at once leaves. What a node does from then on goes to a disk
// that nobody will open, and is heard by nobody.
type power struct {
	gate sync.RWMutex
	ops  atomic.Int64
	cut  atomic.Pointer[plannedCut]
}

// plannedCut takes nodes before the operation of a number.
type plannedCut struct {
	at    int64
	nodes []*node
	done  chan struct{}
}

// pass is asked before each call of a life's file system.
func (c *Cluster) pass(l *life, op vfs.Op) error {
	c.power.gate.RLock()
	gone := l.gone.Load()
	c.power.gate.RUnlock()
	if !gone {
		at := c.power.ops.Add(1)
		if p := c.power.cut.Load(); p != nil && at >= p.at && c.power.cut.CompareAndSwap(p, nil) {
			c.end(p.nodes, (*node).crash)
			close(p.done)
		}
	}
	if c.opts.Rule != nil {
		return c.opts.Rule(l.node.id, op)
	}
	return nil
}

// end ends the present lives of nodes at one instant, and has leaves say what
// each disk then holds. The disk of a node that is down is what an earlier end
// left of it.
func (c *Cluster) end(nodes []*node, leaves func(n *node, disk *vfs.Mem) *vfs.Mem) {
	c.power.gate.Lock()
	defer c.power.gate.Unlock()
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

// PowerCut takes the power of the nodes named (of all, if none are) at one
// instant. Of what was not synced any subset survives, of what was synced all.
func (c *Cluster) PowerCut(ids ...string) { c.end(c.named(ids), (*node).crash) }

// PowerCutAfter plans a PowerCut before the n-th file operation from now, of
// whichever node. The channel is closed when it has happened. A later plan, or
// CancelCut, replaces it.
func (c *Cluster) PowerCutAfter(n int, ids ...string) <-chan struct{} {
	p := &plannedCut{at: c.power.ops.Load() + int64(n), nodes: c.named(ids), done: make(chan struct{})}
	c.power.cut.Store(p)
	return p.done
}

// CancelCut drops a planned cut that has not happened.
func (c *Cluster) CancelCut() { c.power.cut.Store(nil) }

// Kill ends the processes of nodes, as kill -9 does: at once, with everything
// that they wrote still there, synced or not. What was not synced is lost to a
// power cut that follows.
func (c *Cluster) Kill(ids ...string) { c.end(c.named(ids), (*node).clone) }

// StopNode ends a node as a signal does, in its own time, so that a leader hands
// over; Restart starts it again.
func (c *Cluster) StopNode(id string) {
	for _, n := range c.named([]string{id}) {
		n.stop()
		n.wait()
	}
}

// Restart starts the nodes named (all, if none are) that are down, on what is
// left of their disks. It returns when what was left of their processes has
// ended and the new ones have begun.
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
