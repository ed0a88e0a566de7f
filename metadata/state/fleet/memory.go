package fleet

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A chunk committed at level memory may be only in its chunkserver's memory. It
// counts while the boot epoch under which it was acknowledged is its device's.
// A table lists these chunks by device, and the device's server reports for
// each whether it is durable. A synced chunk is at level nvme from then on. A
// chunk that will never be synced is void. It is recorded under boot epoch 0,
// which no device has. So it counts nowhere, and its stripe is repaired.

const (
	// maxSettled is the largest number of chunks that one command settles.
	maxSettled = 128
	// maxMemoryListed is the largest number of chunks in memory that one answer lists.
	maxMemoryListed = 1024

	memoryVersion = 1
)

// IsInMemory reports whether a chunk is recorded as possibly only in memory.
func IsInMemory(c *moraine.ChunkState) bool { return c.Level == moraine.Memory && c.Epoch != 0 }

// IsVoid reports whether a chunk was only in memory and is gone.
func IsVoid(c *moraine.ChunkState) bool { return c.Level == moraine.Memory && c.Epoch == 0 }

// AddStripes writes new stripes and lists their chunks in memory. Their numbers grow, so that a device's
// server reads only those that are new to it.
func AddStripes(t *kvtx.Tx, stripes []*moraine.Stripe) {
	at := uint64(0) // of this command
	for _, s := range stripes {
		s.MemoryAt = 0
		if slices.ContainsFunc(s.Chunks, func(c moraine.ChunkState) bool { return IsInMemory(&c) }) {
			if at == 0 {
				at = t.Next(record.CMemory)
			}
			s.MemoryAt = at
		}
		InsertStripe(t, s)
		for n := range s.Chunks {
			if !IsInMemory(&s.Chunks[n]) {
				continue
			}
			t.Insert(t.K.MemoryChunk(s.Chunks[n].Device, at, moraine.ChunkID{Stripe: s.ID, Index: uint8(n)}), []byte{memoryVersion})
		}
	}
}

// InOneMemory reports whether chunks of a stripe are in the memory of the only host. Its other
// devices then protect them from nothing.
func InOneMemory(v *kvtx.View, s *moraine.Stripe) (bool, error) {
	for n := range s.Chunks {
		if IsInMemory(&s.Chunks[n]) {
			hosts, err := hostCount(v)
			return hosts == 1, err
		}
	}
	return false, nil
}

// LeaveMemory removes a chunk of a stripe from the table of chunks in memory, if it is listed. The caller
// writes the stripe.
func LeaveMemory(t *kvtx.Tx, s *moraine.Stripe, index uint8, c *moraine.ChunkState) {
	if IsInMemory(c) {
		t.Del(t.K.MemoryChunk(c.Device, s.MemoryAt, moraine.ChunkID{Stripe: s.ID, Index: index}))
	}
}

// SettleChunks records what a device's server reports about chunks recorded as in memory. It skips
// those that are settled already, or are no longer the device's.
func SettleChunks(t *kvtx.Tx, op *wire.SettleChunks) (*wire.MetaResponse, error) {
	ref := "device " + record.Utoa(uint64(op.GetDevice()))
	if len(op.GetChunks()) > maxSettled {
		return nil, kvtx.Fail(moraine.TooLarge, "settle chunks", ref, "the request has %d chunks, %d at most", len(op.GetChunks()), maxSettled)
	}
	d, err := LookDevice(&t.View, moraine.DeviceID(op.GetDevice()))
	if err != nil {
		return nil, err
	}
	if d == nil || moraine.Epoch(op.GetEpoch()) != d.Epoch {
		return nil, kvtx.Fail(moraine.Stale, "settle chunks", ref, "the device is unknown, or its epoch is not %d", op.GetEpoch())
	}
	for _, w := range op.GetChunks() {
		if err := settleChunk(t, moraine.DeviceID(op.GetDevice()), w); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// settleChunk settles one chunk of a device.
func settleChunk(t *kvtx.Tx, device moraine.DeviceID, w *wire.SettledChunk) error {
	s, err := Stripe(&t.View, moraine.StripeID(w.GetStripe()))
	if err != nil || s == nil || w.GetIndex() >= uint32(len(s.Chunks)) {
		return err
	}
	c := &s.Chunks[w.GetIndex()]
	if c.Device != device || !IsInMemory(c) {
		return nil
	}
	LeaveMemory(t, s, uint8(w.GetIndex()), c)
	c.Epoch = 0
	// A chunk that differs from its record counts as gone.
	if !w.GetGone() && w.GetCrc() == c.CRC && moraine.LayoutVersion(w.GetVersion()) <= s.Version {
		c.Level = moraine.NVMe
	}
	t.Put(t.K.Stripe(s.ID), record.EncodeStripe(s))
	t.Events.Settled = true
	return QueueRepair(t, s, 0)
}

// ReadMemory lists the chunks of a device that are recorded as in memory, in the order of their commits. It
// also says what should happen to the chunks whose writes the device defers.
func ReadMemory(v *kvtx.View, op *wire.ListMemory) (*wire.MetaResponse, error) {
	limit := maxMemoryListed
	if n := int(op.GetLimit()); n > 0 {
		limit = min(limit, n)
	}
	id := moraine.DeviceID(op.GetDevice())
	prefix := v.K.MemoryChunks(id)
	lo := prefix
	if op.GetAfter() != 0 {
		lo = append(v.K.MemoryChunk(id, op.GetAfter(), moraine.ChunkID{Stripe: moraine.StripeID(op.GetAfterStripe()), Index: uint8(min(op.GetAfterIndex(), 255))}), 0)
	}
	reply := &wire.MemoryReply{At: op.GetAfter()}
	err := v.R.Scan(lo, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		if len(reply.Chunks) == limit {
			reply.More = true
			return false
		}
		c := ChunkOfKey(key)
		reply.At = binary.BigEndian.Uint64(key[len(prefix):])
		reply.Chunks = append(reply.Chunks, &wire.SettledChunk{Stripe: uint64(c.Stripe), Index: uint32(c.Index)})
		return true
	})
	if err != nil {
		return nil, err
	}
	if err := judgeDeferred(v, op.GetDeferredFor(), reply); err != nil {
		return nil, err
	}
	if reply.Dead, err = deadInMemory(v, id, op.GetOfGone()); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Memory{Memory: reply}}, nil
}

// InMemory reports whether chunks of a device are recorded as in memory.
func InMemory(r *kvtx.View, id moraine.DeviceID) (some bool, err error) {
	prefix := r.K.MemoryChunks(id)
	err = r.Scan(prefix, kvtx.PrefixEnd(prefix), func(_, _ []byte) bool { some = true; return false })
	return some, err
}
