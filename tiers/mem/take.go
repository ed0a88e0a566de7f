package mem

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// Take is Put of a buffer that it keeps as long as there is memory: buf, from the
// Arena, is its own from now on, whatever it returns. At level NVMe and above the
// chunk is on the device when it returns. At level Memory it may be in memory alone
// then, and is being written behind: the level that was reached is returned. It is
// NVMe where Run does not run, where the device may be too full, and where there are
// as many dirty bytes as there may be: who brings more goes at the pace of the
// device. Errors are those of tiers.Tier.
func (t *Tier) Take(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32, level moraine.Level) (moraine.Level, error) {
	const op = "mem.Take"
	if err := t.begin(op); err != nil {
		buf.Release()
		return 0, err
	}
	defer t.calls.Done()
	size := int64(cap(buf.Bytes()))
	if level < moraine.NVMe && t.roomBelow(&h) && t.behind.admits() && t.m.dirty.TryAcquire(size) {
		return t.takeBehind(ctx, h, buf, sums)
	}
	if err := t.claims.Take(ctx, h.ID); err != nil {
		buf.Release()
		return 0, gaveUp(op, h.ID, err)
	}
	defer t.claims.Drop(h.ID)
	f := t.m.cache.announce(t.key(h.ID))
	if err := t.put(ctx, h, buf.Bytes(), sums); err != nil {
		t.m.cache.forget(t.key(h.ID), f)
		buf.Release()
		return 0, err
	}
	t.m.cache.putUnless(f, chunkOf(t.key(h.ID), h, buf, sums))
	return moraine.NVMe, nil
}

// roomBelow reports whether the device has room for a chunk and all that is dirty.
func (t *Tier) roomBelow(h *tiers.Header) bool {
	_, dirty := t.behind.more()
	return t.lower.Usage().FreeBytes() > uint64(2*(dirty+h.Length+block))
}

// takeBehind takes a chunk into memory, and has it written behind. The caller has
// acquired room among the dirty bytes.
func (t *Tier) takeBehind(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32) (moraine.Level, error) {
	const op = "mem.Take"
	var level moraine.Level
	held, err := false, t.lower.Err()
	if err == nil {
		if err = t.check(&h, buf.Bytes(), sums); err != nil {
			err = &moraine.Error{Op: op, Ref: h.ID.String(), Kind: moraine.KindOf(err), Err: err}
		}
	}
	size := int64(cap(buf.Bytes()))
	if err == nil {
		level, held, err = t.takeDirty(ctx, h, buf, sums)
	}
	if !held {
		t.m.dirty.Release(size)
		buf.Release()
	}
	return level, err
}

// takeDirty makes the chunk a dirty one; what is there already it does not hold.
func (t *Tier) takeDirty(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32) (level moraine.Level, held bool, err error) {
	const op = "mem.Take"
	if err := t.claims.Take(ctx, h.ID); err != nil {
		return 0, false, gaveUp(op, h.ID, err)
	}
	defer t.claims.Drop(h.ID)
	if old := t.behind.header(h.ID); old != nil && old.Version >= h.Version {
		return moraine.Memory, false, alreadyThere(old, &h)
	}
	old, err := t.lower.Get(ctx, h.ID, 0, nil)
	switch {
	case err == nil && old.Version >= h.Version:
		return moraine.NVMe, false, alreadyThere(&old, &h)
	case err != nil && !errors.Is(err, moraine.NotFound):
		return 0, false, err
	}
	if err := t.hold(h, buf, sums, err == nil); err != nil {
		return 0, false, err
	}
	return moraine.Memory, true, nil
}

// hold makes a chunk a dirty one. replaces is whether the device has an older
// version. The caller holds the claim.
func (t *Tier) hold(h tiers.Header, buf *bufpool.Buffer, sums []uint32, replaces bool) error {
	t.forgo(h.ID) // what is dirty is older
	c := chunkOf(t.key(h.ID), h, buf, sums)
	c.dirty, c.refs = true, 1
	// Its writer needs the claim, so that it is found here before it is written.
	if !t.behind.add(&dirtyChunk{held: c, arrived: t.m.deps.Clock.Now(), replaces: replaces, done: make(chan struct{})}) {
		return &moraine.Error{Op: "mem.Take", Ref: h.ID.String(), Kind: moraine.Unavailable, Err: errors.New("shutting down")}
	}
	t.m.cache.put(c)
	return nil
}

// check is what a device checks, before it can.
func (t *Tier) check(h *tiers.Header, data []byte, sums []uint32) error {
	bad := func(kind moraine.Kind, format string, args ...any) error {
		return &moraine.Error{Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case h.Length < 1 || h.Length > moraine.MaxChunkSize:
		return bad(moraine.TooLarge, "a chunk of %d bytes", h.Length)
	case int64(len(data)) != h.Length:
		return bad(moraine.InvalidArgument, "%d bytes with a header of %d", len(data), h.Length)
	case cap(data) < crc.BlockCount(h.Length)*block || uintptr(unsafe.Pointer(unsafe.SliceData(data)))%block != 0:
		return bad(moraine.InvalidArgument, "the buffer is not aligned to blocks")
	case len(sums) != crc.BlockCount(h.Length):
		return bad(moraine.InvalidArgument, "%d block sums for %d bytes", len(sums), h.Length)
	case h.Cluster != t.cluster:
		return bad(moraine.WrongCluster, "a chunk of cluster %s", h.Cluster)
	case crc.CombineBlocks(sums, h.Length) != h.CRC:
		return bad(moraine.Corrupt, "the block sums do not combine to %08x", h.CRC)
	}
	return nil
}
