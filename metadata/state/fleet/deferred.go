package fleet

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// The chunks of a step that stays in memory are in the memory of their chunkservers alone. When the
// step is removed, their memory comes back at once: neither the grace nor the backup horizon is waited
// for. A removed step has no reader, since a read lease refuses the removal. A backup cannot rely on
// memory. The state says which chunks are dead, and the server says which of those were never on a
// device. Their tombstones stay for the grace, so that a put that arrives late is found too.

// judgeDeferred says of steps, by their directories, which go on to the devices, and which were removed.
// The others stay in memory.
func judgeDeferred(v *kvtx.View, dirs []uint64, reply *wire.MemoryReply) error {
	for _, id := range dirs[:min(len(dirs), maxMemoryListed)] {
		s, err := tree.StepOfDir(v, moraine.InodeID(id))
		switch {
		case err != nil:
			return err
		case s == nil || s.State == record.StepDeleted:
			reply.Gone = append(reply.Gone, id)
		case !s.StaysInMemory:
			reply.Write = append(reply.Write, id)
		}
	}
	return nil
}

// deadInMemory returns deletions of those of some chunks of a device that no record can name any more. After
// a restore of the metadata there are none until every device has reported.
func deadInMemory(v *kvtx.View, id moraine.DeviceID, chunks []*wire.ChunkReport) (dead []*wire.Deletion, err error) {
	if len(chunks) == 0 {
		return nil, nil
	}
	if waits, err := Unreported(v); err != nil || waits > 0 {
		return nil, err
	}
	for _, c := range chunks[:min(len(chunks), maxMemoryListed)] {
		below, err := belowDead(v, id, c)
		if err != nil {
			return nil, err
		}
		if below > 0 {
			dead = append(dead, &wire.Deletion{Device: uint32(id), Stripe: c.GetStripe(), Index: c.GetIndex(), Below: uint32(below)})
		}
	}
	return dead, nil
}

// belowDead returns the layout version below which a chunk is dead for ever; 0: it is not.
func belowDead(v *kvtx.View, id moraine.DeviceID, c *wire.ChunkReport) (moraine.LayoutVersion, error) {
	if c.GetIndex() >= moraine.MaxChunks {
		return 0, nil
	}
	chunk := moraine.ChunkID{Stripe: moraine.StripeID(c.GetStripe()), Index: uint8(c.GetIndex())}
	if s, err := Stripe(v, chunk.Stripe); err != nil || s != nil {
		return 0, err
	}
	if in, err := readIntent(v, chunk); err != nil || in != nil {
		return 0, err
	}
	version := moraine.LayoutVersion(c.GetVersion())
	tomb, _, ok, err := TombstoneOf(v, id, chunk)
	if err != nil || ok && version < tomb.Below {
		return tomb.Below, err
	}
	// Without a tombstone, nobody committed the chunk. It is dead when its grant has ended.
	said, err := explain(v, id, chunk, version, version+1, false, math.MaxUint64)
	if err != nil || said.Fate != Dead {
		return 0, err
	}
	return said.Below, nil
}

// neverOnDevice makes the tombstone of a chunk one that is not kept for backups. The chunk was in memory
// alone, and is gone.
func neverOnDevice(t *kvtx.Tx, id moraine.DeviceID, chunk moraine.ChunkID, s record.Tombstone, since uint64) error {
	if !s.Kept {
		return nil
	}
	if err := DropTombstone(t, id, chunk, s, since); err != nil {
		return err
	}
	s.Kept = false
	t.Put(t.K.Tombstone(false, id, since, chunk), s.Encode())
	t.Put(t.K.TombstoneAt(id, chunk), s.Place(since))
	t.Count[record.CPendingBytes] += uint64(s.Bytes)
	return nil
}
