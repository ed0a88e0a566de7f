package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A chunk that was committed at level memory may be in the memory of its
// chunkserver alone. It counts while the boot epoch that it was acknowledged under
// is its device's. Which chunks these are is a table, by device: the device's server
// goes through it and says of each where it is by now. One that it has synced is at
// level nvme from then on. One that it has not, and never will, is void: it is
// recorded under boot epoch 0, which no device ever has, so that it counts nowhere,
// and its stripe is repaired.

const (
	// MaxSettled is the most chunks that one command settles.
	MaxSettled = 128
	// MaxMemoryListed is the most chunks in memory that one answer lists.
	MaxMemoryListed = 1024

	memoryVersion = 1
)

// inMemory reports whether a chunk is recorded as one that may be in memory alone.
func inMemory(c *moraine.ChunkState) bool { return c.Level == moraine.Memory && c.Epoch != 0 }

// void reports whether a chunk was in memory alone, and is gone.
func void(c *moraine.ChunkState) bool { return c.Level == moraine.Memory && c.Epoch == 0 }

// addStripes writes new stripes, with what of them is in memory.
func (m *Machine) addStripes(t *tx, stripes []*moraine.Stripe) error {
	for _, s := range stripes {
		t.insertStripe(s)
		for n := range s.Chunks {
			if !inMemory(&s.Chunks[n]) {
				continue
			}
			if ok, err := t.speaks(LevelMemory); !ok || err != nil {
				return err
			}
			t.insert(t.k.memoryChunk(s.Chunks[n].Device, moraine.ChunkID{Stripe: s.ID, Index: uint8(n)}), []byte{memoryVersion})
		}
	}
	return nil
}

// inOneMemory reports whether chunks of a stripe are in the memory of the only host:
// then its other devices protect them from nothing.
func (v *view) inOneMemory(s *moraine.Stripe) (bool, error) {
	for n := range s.Chunks {
		if inMemory(&s.Chunks[n]) {
			hosts, err := v.hostCount()
			return hosts == 1, err
		}
	}
	return false, nil
}

// leaveMemory takes a chunk out of the table of what is in memory, if it may be
// there. The caller writes the stripe.
func (t *tx) leaveMemory(id moraine.ChunkID, c *moraine.ChunkState) {
	if inMemory(c) {
		t.del(t.k.memoryChunk(c.Device, id))
	}
}

// settleChunks takes over what a device's server says of chunks that are recorded
// as in memory. What is settled already, or not the device's any more, is passed over.
func (m *Machine) settleChunks(t *tx, op *wire.SettleChunks) (*wire.MetaResponse, error) {
	ref := "device " + record.Utoa(uint64(op.GetDevice()))
	if len(op.GetChunks()) > MaxSettled {
		return nil, fail(moraine.TooLarge, "settle chunks", ref, "%d chunks, %d at most", len(op.GetChunks()), MaxSettled)
	}
	d, err := t.lookDevice(moraine.DeviceID(op.GetDevice()))
	if err != nil {
		return nil, err
	}
	if d == nil || moraine.Epoch(op.GetEpoch()) != d.Epoch {
		return nil, fail(moraine.Stale, "settle chunks", ref, "boot epoch %d is not the device's", op.GetEpoch())
	}
	for _, w := range op.GetChunks() {
		if err := m.settleChunk(t, moraine.DeviceID(op.GetDevice()), w); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

func (m *Machine) settleChunk(t *tx, device moraine.DeviceID, w *wire.SettledChunk) error {
	s, err := t.stripe(moraine.StripeID(w.GetStripe()))
	if err != nil || s == nil || w.GetIndex() >= uint32(len(s.Chunks)) {
		return err
	}
	c := &s.Chunks[w.GetIndex()]
	if c.Device != device || !inMemory(c) {
		return nil
	}
	t.leaveMemory(moraine.ChunkID{Stripe: s.ID, Index: uint8(w.GetIndex())}, c)
	c.Epoch = 0
	// What is there and is not what the record says is as good as gone.
	if !w.GetGone() && w.GetCrc() == c.CRC && moraine.LayoutVersion(w.GetVersion()) <= s.Version {
		c.Level = moraine.NVMe
	}
	t.put(t.k.stripe(s.ID), record.EncodeStripe(s))
	t.events.Settled = true
	return m.queueRepair(t, s, 0)
}

// readMemory lists the chunks of a device that are recorded as in memory.
func (v *view) readMemory(op *wire.ListMemory) (*wire.MetaResponse, error) {
	limit := MaxMemoryListed
	if n := int(op.GetLimit()); n > 0 {
		limit = min(limit, n)
	}
	id := moraine.DeviceID(op.GetDevice())
	prefix := v.k.memoryChunks(id)
	lo := prefix
	if op.GetAfterStripe() != 0 {
		lo = append(v.k.memoryChunk(id, moraine.ChunkID{Stripe: moraine.StripeID(op.GetAfterStripe()), Index: uint8(min(op.GetAfterIndex(), 255))}), 0)
	}
	reply := &wire.MemoryReply{}
	err := v.r.Scan(lo, prefixEnd(prefix), func(key, _ []byte) bool {
		if len(reply.Chunks) == limit {
			reply.More = true
			return false
		}
		c := chunkOfKey(key)
		reply.Chunks = append(reply.Chunks, &wire.SettledChunk{Stripe: uint64(c.Stripe), Index: uint32(c.Index)})
		return true
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Memory{Memory: reply}}, err
}

// InMemory reports whether chunks of a device are recorded as in memory.
func (m *Machine) InMemory(r Reader, id moraine.DeviceID) (some bool, err error) {
	prefix := m.k.memoryChunks(id)
	err = r.Scan(prefix, prefixEnd(prefix), func(_, _ []byte) bool { some = true; return false })
	return some, err
}
