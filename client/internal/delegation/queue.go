package delegation

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport/wire"
)

const (
	// batchOps is how many changes are sent although nobody waits for them, and sendAfter how long fewer
	// of them wait for others.
	batchOps, sendAfter = 256, 5 * time.Millisecond
	// maxQueueOps and maxQueueBytes bound the queue: further changes wait.
	maxQueueOps, maxQueueBytes = 4096, 8 << 20
)

// change is one change in the queue.
type change struct {
	wire  *wire.BatchOp
	node  *node
	dirs  [2]*dir  // whose names it changes
	about []uint64 // inodes that it names or changes
	seq   uint64
	bytes int
	born  time.Time
	sent  bool // it is in a batch, and no longer changes
	err   error
}

// queue are the changes that the service has not confirmed, in order.
type queue struct {
	ops    []*change
	bytes  int
	last   uint64 // number of the newest change
	done   uint64 // changes up to this number are confirmed, or lost
	wanted uint64 // somebody waits for the changes up to this number
	about  map[uint64]int
	calls  calls
}

// room reports whether the queue takes another change.
func (q *queue) room() bool {
	if len(q.ops) < maxQueueOps && q.bytes < maxQueueBytes {
		return true
	}
	q.wanted = q.last
	return false
}

// target is the last change on which a request depends; 0: none.
func (q *queue) target(r reach) uint64 {
	if r.all {
		return q.last
	}
	for _, inode := range r.reads {
		if q.about[inode] > 0 {
			return q.last
		}
	}
	return 0
}

// early is how long the sender waits for more changes. There are some.
func (q *queue) early(now time.Time) time.Duration {
	switch {
	case len(q.ops) >= batchOps:
		return 0
	case q.wanted <= q.done:
		return sendAfter - now.Sub(q.ops[0].born)
	}
	return q.calls.left(now)
}

// enqueue adds a change about inodes. The caller holds the mutex.
func (d *table) enqueue(c *change, about ...uint64) {
	q := &d.queue
	q.last++
	c.seq, c.about, c.born = q.last, about, d.Clock.Now()
	c.bytes = proto.Size(c.wire) + 4
	q.ops = append(q.ops, c)
	q.bytes += c.bytes
	for _, inode := range about {
		q.about[inode]++
	}
	c.node.last = c
	for _, l := range c.dirs {
		if l != nil {
			l.last, l.changed = c, c.born
		}
	}
	for _, l := range []*dir{c.node.dir, d.dirs[c.node.attr.Parent]} {
		if l != nil {
			l.changed = c.born
		}
	}
	d.Metrics.DelegatedOps.Inc()
	d.engaged.Store(true)
	if n := len(q.ops); n == 1 || n == batchOps || !q.room() {
		signal(d.send)
	}
}

// grow counts bytes that a change got.
func (q *queue) grow(c *change) {
	was := c.bytes
	c.bytes = proto.Size(c.wire) + 4
	q.bytes += c.bytes - was
}

// want makes the sender send the changes up to a number at once. The caller holds the mutex.
func (d *table) want(seq uint64) {
	if seq > d.queue.wanted {
		d.queue.wanted = seq
	}
	if d.queue.wanted > d.queue.done {
		signal(d.send)
	}
}

// awaitSent waits until the changes up to a number are confirmed, or lost.
func (d *table) awaitSent(ctx context.Context, seq uint64) error {
	waits := false
	err := d.until(ctx, func() bool {
		if d.queue.done >= seq {
			return true
		}
		if !waits {
			d.queue.calls.begin(seq)
			waits = true
		}
		d.want(seq)
		return false
	})
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.queue.calls.end(seq)
	}
	return err
}

// Sync waits until all that was changed so far is confirmed. It returns, once, what a change of the
// inode lost; 0: of any inode.
func (d *Desk) Sync(ctx context.Context, inode uint64) error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	last := d.queue.last
	d.mu.Unlock()
	if err := d.awaitSent(ctx, last); err != nil {
		return err
	}
	return d.Fault(inode)
}

// Unsent reports whether a change of an inode is queued, or was lost without a report.
func (d *Desk) Unsent(inode uint64) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queue.about[inode] > 0 || d.faults[inode] != nil
}

// nameOf names a change in the log.
func nameOf(op *wire.BatchOp) string {
	switch op.Op.(type) {
	case *wire.BatchOp_Create:
		return "create"
	case *wire.BatchOp_Remove:
		return "remove"
	case *wire.BatchOp_Rename:
		return "rename"
	case *wire.BatchOp_SetAttr:
		return "set attributes"
	}
	return "content"
}
