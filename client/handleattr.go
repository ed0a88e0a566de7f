package client

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// setAttr changes attributes of a file that is open. A time that is set is that
// of what was written before, so all of that is committed first; a size holds
// for what was written before and not committed too.
func (ct *content) setAttr(ctx context.Context, op *wire.SetAttr) (*wire.Attr, error) {
	has := func(f wire.SetAttrField) bool { return op.Valid&uint32(f) != 0 }
	resize := has(wire.SetAttrField_SET_ATTR_SIZE)
	if err := ct.gate.Lock(ctx); err != nil {
		return nil, err
	}
	defer ct.passOn()
	defer ct.gate.Unlock()
	if has(wire.SetAttrField_SET_ATTR_MTIME) {
		if err := ct.launchAll(ctx); err != nil {
			return nil, err
		}
		if err := ct.awaitCommitted(ctx); err != nil {
			return nil, err
		}
	}
	if err := ct.publish.Lock(ctx); err != nil {
		return nil, err
	}
	defer ct.publish.Unlock()
	op.Inode = uint64(ct.sender.Inode)
	resp, err := ct.c.Inodes().changeAttr(ctx, op)
	attr, err := entryOf(resp, err, "set attributes", ct.ref)
	ct.mu.Lock()
	defer ct.mu.Unlock()
	if err != nil {
		ct.doubted = true
		return nil, err
	}
	ct.sawBase(attr)
	if resize {
		ct.cutFrom(int64(op.Size))
	}
	return attr, nil
}

// passOn sends what is open where somebody waits for memory: whoever had the
// gate does, when it is free again.
func (ct *content) passOn() {
	if ct.c.io.Writes.Wanted() {
		ct.Yield()
	}
}

// cutFrom drops what was written past size. The mutex is held.
func (ct *content) cutFrom(size int64) {
	ct.spans.cut(size, endOfFile)
	for _, b := range ct.queue {
		if !b.appended {
			b.cutFrom(size)
		}
	}
}

// append puts p at the end of the file as the service knows it, stripe by
// stripe.
func (ct *content) append(ctx context.Context, p []byte) (off int64, n int, err error) {
	ct.mu.Lock()
	base := ct.base.Size
	ct.mu.Unlock()
	if err := ct.room.admit(ctx, ct.c, ct.sender.Inode, base, int64(len(p))); err != nil {
		return 0, 0, err
	}
	if err := ct.gate.Lock(ctx); err != nil {
		return 0, 0, err
	}
	defer ct.passOn()
	defer ct.gate.Unlock()
	// What was written before lies before it.
	if err := ct.launchAll(ctx); err != nil {
		return 0, 0, err
	}
	if err := ct.awaitCommitted(ctx); err != nil {
		return 0, 0, err
	}
	for n < len(p) {
		at, took, err := ct.appendOne(ctx, p[n:])
		if err != nil {
			return off, n, err
		}
		if n == 0 {
			off = at
		}
		n += took
	}
	return off, n, nil
}

// appendOne puts as much of p as one stripe takes at the end of the file. The
// gate is held, and nothing is open.
func (ct *content) appendOne(ctx context.Context, p []byte) (off int64, n int, err error) {
	b := &batch{born: ct.c.clock.Now(), appended: true, st: &stripeio.Stripe{}}
	if err := ct.fillAppended(ctx, b, p); err != nil {
		ct.giveBack(b)
		return 0, 0, err
	}
	if err := ct.launch(ctx, b); err != nil {
		ct.giveBack(b)
		return 0, 0, err
	}
	if err := ct.awaitCommitted(ctx); err != nil {
		return ct.withdraw(b, err)
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	return b.at, int(b.length), b.err
}

// withdraw gives up a batch that was appended, for whoever waits for it no longer since
// err: he may append the bytes again. Where the service was asked for them already the
// error is a Timeout, so that nobody takes it for a call that did nothing.
func (ct *content) withdraw(b *batch, err error) (off int64, n int, _ error) {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	switch {
	case b.state == batchDone:
		return b.at, int(b.length), nil
	case b.state == batchFailed:
		return 0, 0, b.err
	case b.asked:
		return 0, 0, &moraine.Error{Op: "append", Ref: ct.ref, Kind: moraine.Timeout, Err: fmt.Errorf("it may be appended yet: %v", err)}
	}
	ct.fail(b, err)
	ct.prune()
	ct.kick()
	ct.signal()
	return 0, 0, err
}

// fillAppended copies as much of p as one stripe takes. The memory is reserved
// at once, so that nothing waits while it holds some.
func (ct *content) fillAppended(ctx context.Context, b *batch, p []byte) (err error) {
	b.limit = ct.c.io.SmallBytes()
	extra := int64(0)
	if int64(len(p)) > b.limit {
		if b.ticket, err = ct.c.io.Grants.Take(ctx, ct.sender.Key, ct.sender.Inode); err != nil {
			return err
		}
		b.limit = int64(b.ticket.Scheme.K) * ct.c.io.ChunkBytes(b.ticket.Scheme)
		extra = int64(b.ticket.Scheme.M) * moraine.BlockSize
	}
	p = p[:min(int64(len(p)), b.limit)]
	need := int64(len(p)) + b.share(int64(len(p))) + extra
	if err := ct.c.io.Writes.Acquire(ctx, need); err != nil {
		return err
	}
	b.charged = need
	for len(p) > 0 {
		buf, err := ct.c.io.Pool.Get(ctx, min(len(p), int(ct.c.cfg.ChunkBytes)))
		if err != nil {
			return err
		}
		b.bufs = append(b.bufs, buf)
		n := copy(buf.Bytes(), p)
		b.st.Lend(buf.Bytes()[:n])
		b.length += int64(n)
		p = p[n:]
	}
	b.extents = []moraine.Extent{{Length: b.length}}
	return nil
}
