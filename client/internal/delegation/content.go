package delegation

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Queue gives a file that was born here its content, as Do does, but returns when the change is in the
// queue. The service gets it a few milliseconds later. done is false if the caller must wait for the service, through Do.
func (d *Desk) Queue(ctx context.Context, op *wire.Commit) (resp *wire.MetaResponse, done bool, err error) {
	if d == nil || !d.engaged.Load() {
		return nil, false, nil
	}
	return d.carryOut(ctx, func() (*wire.MetaResponse, error) {
		if d.apart { // the service may refuse content, and the caller then writes stripes
			return nil, errPlain
		}
		resp, at, err := d.setContent(op)
		if err == nil {
			at.wire.Answered = true
		}
		return resp, err
	})
}

// commit gives a file that was born here its content, if that is small enough to go with the
// change. It returns when the service has it.
func (d *Desk) commit(ctx context.Context, op *wire.Commit) (resp *wire.MetaResponse, done bool, err error) {
	var at *change
	resp, done, err = d.carryOut(ctx, func() (resp *wire.MetaResponse, err error) {
		resp, at, err = d.setContent(op)
		return resp, err
	})
	if !done || err != nil {
		return resp, done, err
	}
	if err := d.awaitSent(ctx, at.seq); err != nil {
		return nil, true, retry.Wrap("commit", moraine.InodeID(op.Inode).String(), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.err != nil {
		delete(d.faults, op.Inode) // the caller has it
		return nil, true, at.err
	}
	return resp, true, nil
}

// setContent applies a commit of content. The caller holds the mutex.
func (d *Desk) setContent(op *wire.Commit) (*wire.MetaResponse, *change, error) {
	n := d.nodes[op.Inode]
	if n == nil || !n.born || d.isOld(n) || n.attr.Stored != n.attr.Inline || n.attr.Type != wire.FileType_FILE_TYPE_REGULAR || !small(op) ||
		op.ExpectGeneration != 0 && op.ExpectGeneration != n.attr.Generation {
		return nil, nil, errPlain
	}
	l, parent, err := d.live(n.attr.Parent)
	switch {
	case err != nil:
		return nil, nil, err
	case d.holds[op.Inode] > 0 || !d.queue.room():
		return nil, nil, errWait
	}
	at := d.times.next(d.Clock.Now())
	mtime := op.Mtime
	if mtime == 0 {
		mtime = at
	}
	fill := func(a *wire.Attr) {
		size := uint64(len(op.Content))
		a.Size, a.Stored, a.Inline, a.Level = size, size, size, uint32(moraine.NVMe)
		a.Mtime, a.Ctime = mtime, at
		a.Generation++
	}
	n.change(fill)
	if c := n.made; c != nil && !c.sent && n.last == c && l.last == c && (parent.last == nil || parent.last.seq < c.seq) && op.Mtime == 0 && !d.apart {
		c.wire.GetCreate().Content, c.wire.At = op.Content, at
		d.queue.grow(c)
		parent.touch(at, 0)
		n.change(func(a *wire.Attr) { a.Atime = at })
		return contentReply(n.attr), c, nil
	}
	c := &change{node: n, wire: &wire.BatchOp{At: at, Op: &wire.BatchOp_Commit{Commit: &wire.Commit{
		Inode: op.Inode, Mode: op.Mode, Mtime: op.Mtime, Level: op.Level, Final: op.Final, Content: op.Content}}}}
	d.enqueue(c, op.Inode)
	return contentReply(n.attr), c, nil
}

// small reports whether a commit is one that a batch takes.
func small(op *wire.Commit) bool {
	return len(op.Content) > 0 && len(op.Content) <= moraine.MaxInline && op.Mode == wire.CommitMode_COMMIT_MODE_REPLACE &&
		op.Link == nil && len(op.Stripes) == 0 && len(op.Extents) == 0
}

func contentReply(a *wire.Attr) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Commit{Commit: &wire.CommitReply{Attr: a}}}
}
