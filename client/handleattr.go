package client

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// setAttr changes attributes of an open file. A new modification time must follow all earlier
// writes, so setAttr commits these first. A new size also cuts earlier writes that are not
// committed.
func (ct *content) setAttr(ctx context.Context, op *wire.SetAttr) (*wire.Attr, error) {
	has := func(f wire.SetAttrField) bool { return op.Valid&uint32(f) != 0 }
	resize := has(wire.SetAttrField_SET_ATTR_SIZE)
	if err := ct.gate.Lock(ctx); err != nil {
		return nil, err
	}
	defer ct.passOn()
	defer ct.gate.Unlock()
	if has(wire.SetAttrField_SET_ATTR_MTIME) {
		if err := ct.sendAll(ctx); err != nil {
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

// passOn sends the open batches if another writer waits for memory. The last holder of the gate
// calls it after it unlocks the gate.
func (ct *content) passOn() {
	if ct.c.io.Writes.Wanted() {
		ct.Yield()
	}
}

// append puts p at the end of the file as the service knows it, stripe by stripe.
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
	// Commit earlier writes first: they lie before the appended bytes.
	if err := ct.sendAll(ctx); err != nil {
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

// appendOne appends as much of p as one stripe takes. The caller holds the gate, and no batch
// is open.
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

// withdraw discards an appended batch, after err ended the caller's wait for it. The caller may
// then append the bytes again. If the client has already sent the commit, the error is Timeout,
// because the bytes may still be appended.
func (ct *content) withdraw(b *batch, err error) (off int64, n int, _ error) {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	switch {
	case b.state == batchDone:
		return b.at, int(b.length), nil
	case b.state == batchFailed:
		return 0, 0, b.err
	case b.asked:
		return 0, 0, &moraine.Error{Op: "append", Ref: ct.ref, Kind: moraine.Timeout, Err: fmt.Errorf("the append may still take effect: %v", err)}
	}
	ct.fail(b, err)
	ct.prune()
	ct.kick()
	ct.signal()
	return 0, 0, err
}

// fillAppended copies as much of p as one stripe takes. It reserves all memory at once, so that
// no writer waits for memory while it has some.
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
	need := int64(len(p)) + b.ticket.Parity(int64(len(p))) + extra
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
