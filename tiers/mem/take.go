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

// Take is Put of a buffer that it keeps as long as there is memory. It owns
// buf, from the Arena, whatever it returns. At level NVMe and above, the chunk
// is on the device when Take returns. At level Memory it may be only in memory
// by then, and is written behind. Take returns the level reached. It is NVMe if
// Run does not run, if the device may be too full, or if the limit of dirty
// bytes is reached. Then puts go at the pace of the device. Errors are those of
// tiers.Tier.
func (t *Tier) Take(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32, level moraine.Level) (moraine.Level, error) {
	return t.take(ctx, h, buf, sums, level, 0)
}

// TakeDeferred is Take at level Memory of a chunk that is not written behind before
// Deferred.Write selects its step, memory is short, or Run ends. step is not 0. Where
// Take would not write behind, the chunk is on the device when TakeDeferred returns.
func (t *Tier) TakeDeferred(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32, step uint64) (moraine.Level, error) {
	level, err := t.take(ctx, h, buf, sums, moraine.Memory, step)
	t.m.trim()
	return level, err
}

func (t *Tier) take(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32, level moraine.Level, step uint64) (moraine.Level, error) {
	const op = "mem.Take"
	if err := t.begin(op); err != nil {
		buf.Release()
		return 0, err
	}
	defer t.calls.Done()
	size := int64(cap(buf.Bytes()))
	if level < moraine.NVMe && t.roomBelow(&h) && t.behind.admits() && t.m.dirty.TryAcquire(size) {
		return t.takeBehind(ctx, h, buf, sums, step)
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

// roomBelow reports whether the device has space for a chunk and all dirty chunks.
func (t *Tier) roomBelow(h *tiers.Header) bool {
	_, dirty := t.behind.more()
	return t.lower.Usage().FreeBytes() > uint64(2*(dirty+h.Length+block))
}

// takeBehind takes a chunk into memory, and has it written behind. The caller has
// acquired the dirty bytes.
func (t *Tier) takeBehind(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32, step uint64) (moraine.Level, error) {
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
		level, held, err = t.takeDirty(ctx, h, buf, sums, step)
	}
	if !held {
		t.m.dirty.Release(size)
		buf.Release()
	}
	return level, err
}

// takeDirty makes the chunk a dirty one. It does not keep a chunk that is already
// there.
func (t *Tier) takeDirty(ctx context.Context, h tiers.Header, buf *bufpool.Buffer, sums []uint32, step uint64) (level moraine.Level, held bool, err error) {
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
	if err := t.hold(h, buf, sums, err == nil, step); err != nil {
		return 0, false, err
	}
	return moraine.Memory, true, nil
}

// hold makes a chunk a dirty one. replaces says whether the device has an older
// version. The caller holds the claim.
func (t *Tier) hold(h tiers.Header, buf *bufpool.Buffer, sums []uint32, replaces bool, step uint64) error {
	t.cancelWrite(h.ID, false) // the dirty version is older
	c := chunkOf(t.key(h.ID), h, buf, sums)
	c.dirty, c.refs = true, 1
	// The writer needs the claim, so readers find the chunk here before it is
	// written.
	if !t.behind.add(&dirtyChunk{held: c, behind: t.behind, step: step, arrived: t.m.deps.Clock.Now(), replaces: replaces, done: make(chan struct{})}) {
		return &moraine.Error{Op: "mem.Take", Ref: h.ID.String(), Kind: moraine.Unavailable, Err: errors.New("shutting down")}
	}
	t.m.cache.put(c)
	return nil
}

// check checks what the device would check, before the device can.
func (t *Tier) check(h *tiers.Header, data []byte, sums []uint32) error {
	bad := func(kind moraine.Kind, format string, args ...any) error {
		return &moraine.Error{Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case h.Length < 1 || h.Length > moraine.MaxChunkSize:
		return bad(moraine.TooLarge, "chunk of %d bytes is too large", h.Length)
	case int64(len(data)) != h.Length:
		return bad(moraine.InvalidArgument, "%d bytes do not match the header's length of %d", len(data), h.Length)
	case cap(data) < crc.BlockCount(h.Length)*block || uintptr(unsafe.Pointer(unsafe.SliceData(data)))%block != 0:
		return bad(moraine.InvalidArgument, "buffer is not aligned to blocks")
	case len(sums) != crc.BlockCount(h.Length):
		return bad(moraine.InvalidArgument, "%d block checksums for %d bytes", len(sums), h.Length)
	case h.Cluster != t.cluster:
		return bad(moraine.WrongCluster, "chunk belongs to cluster %s", h.Cluster)
	case crc.CombineBlocks(sums, h.Length) != h.CRC:
		return bad(moraine.Corrupt, "block checksums do not combine to %08x", h.CRC)
	}
	return nil
}
