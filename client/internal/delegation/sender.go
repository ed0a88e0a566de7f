package delegation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// sendEach sends batches, one after the other, until ctx ends.
func (d *Desk) sendEach(ctx context.Context) {
	for ctx.Err() == nil {
		batch, session, due := d.nextBatch()
		if len(batch) > 0 {
			d.sendBatch(ctx, batch, session)
			continue
		}
		var timer <-chan time.Time
		if due > 0 {
			timer = d.Clock.After(due)
		}
		select {
		case <-ctx.Done():
		case <-d.send:
		case <-timer:
		}
	}
}

// nextBatch takes the changes of the next batch. Without any, due says when there are some to send;
// 0: the queue is empty.
func (d *Desk) nextBatch() (batch []*change, session uint64, due time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := &d.queue
	if len(q.ops) == 0 {
		return nil, 0, 0
	}
	if left := q.early(d.Clock.Now()); left > 0 {
		return nil, 0, left
	}
	bytes := 0
	for _, c := range q.ops {
		if bytes += c.bytes; len(batch) == wire.MaxBatchOps || len(batch) > 0 && bytes > wire.MaxBatchBytes {
			break
		}
		c.sent = true
		batch = append(batch, c)
	}
	return batch, d.session, 0
}

// sendBatch sends changes and records what became of them.
func (d *Desk) sendBatch(ctx context.Context, batch []*change, session uint64) {
	b := &wire.Batch{Ops: make([]*wire.BatchOp, len(batch))}
	for i, c := range batch {
		b.Ops[i] = c.wire
	}
	d.Metrics.DelegationBatches.Inc()
	began := d.Clock.Now()
	resp, err := d.Service.Send(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: b}}, session)
	results := resp.GetBatch().GetResults()
	if err == nil && len(results) != len(batch) {
		err = retry.BadReply("batch")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.loseAll(&moraine.Error{Op: "batch", Kind: moraine.IOError, Err: fmt.Errorf("the changes did not reach the service: %w", err)})
		return
	}
	d.times.saw(resp.GetBatch().GetNow(), d.Clock.Now())
	failed := false
	for i, c := range batch {
		switch err := transport.ErrorFromWire(results[i].Error); {
		case c.wire.Answered && (results[i].Empty || results[i].Error != nil):
			d.lostAnswered(c, err)
			failed = true
		case results[i].Empty, results[i].Error != nil && c.wire.GetCommit() != nil && retry.IsKind(err, moraine.NoSpace):
			d.keepsNone(c)
		case results[i].Error != nil:
			d.lost(c, lossOf(err))
			failed = true
		}
		d.apart = d.apart || results[i].Full
		if results[i].Undelegated && c.node.dir != nil {
			d.give(c.node.dir)
		}
	}
	d.confirm(len(batch))
	d.queue.calls.confirmed(d.queue.done, d.Clock.Since(began), d.Clock.Now())
	if failed { // the table differs from the service's
		d.giveAll()
	}
	d.wake()
}

// keepsNone records that the metadata keeps no content of a file, which it has otherwise. Nothing is lost:
// who committed it waits, and sends it in stripes. The caller holds the mutex.
func (d *Desk) keepsNone(c *change) {
	c.err = &moraine.Error{Op: "commit", Ref: moraine.InodeID(c.node.attr.Inode).String(), Kind: moraine.NoSpace,
		Err: errors.New("the metadata keeps no more content: write it to stripes")}
	d.apart = true
	d.markOld(c.node.attr.Inode)
}

// lostAnswered records the loss of content that the desk has answered, and does not answer more of it. The
// caller holds the mutex.
func (d *Desk) lostAnswered(c *change, err error) {
	if err == nil {
		err = &moraine.Error{Op: "commit", Ref: moraine.InodeID(c.node.attr.Inode).String(), Kind: moraine.NoSpace,
			Err: errors.New("the metadata keeps no more content")}
	}
	d.apart = d.apart || retry.IsKind(err, moraine.NoSpace)
	d.lost(c, lossOf(err))
}

// lossOf is the error of a change that the service did not carry out.
func lossOf(err error) error {
	if retry.IsKind(err, moraine.NoSpace) || retry.IsKind(err, moraine.QuotaExceeded) {
		return err
	}
	return &moraine.Error{Op: "batch", Kind: moraine.IOError, Err: fmt.Errorf("the service refused what was done in a delegated directory: %w", err)}
}

// confirm takes the first n changes from the queue. The caller holds the mutex.
func (d *table) confirm(n int) {
	q := &d.queue
	for _, c := range q.ops[:n] {
		q.done = c.seq
		q.bytes -= c.bytes
		for _, inode := range c.about {
			if q.about[inode]--; q.about[inode] == 0 {
				delete(q.about, inode)
			}
		}
		if c.node.last == c {
			c.node.last = nil
		}
		if c.node.made == c {
			c.node.made = nil
		}
		for _, l := range c.dirs {
			if l != nil && l.last == c {
				l.last = nil
			}
		}
	}
	clear(q.ops[:n])
	if q.ops = q.ops[n:]; len(q.ops) == 0 {
		q.ops = nil
	}
}

// loseAll gives up all changes and delegations: their session, or the client, has ended. The caller
// holds the mutex.
func (d *Desk) loseAll(err error) {
	for _, c := range d.queue.ops {
		d.lost(c, err)
	}
	d.confirm(len(d.queue.ops))
	d.queue.calls.confirmed(d.queue.done, 0, d.Clock.Now())
	d.giveAll()
	d.wake()
}
