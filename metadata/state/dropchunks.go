package state

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// maxDropped is the most chunks of one DropChunks.
const maxDropped = 256

// dropChunks lets chunks die that nothing explains. Each gets a tombstone, so that it is
// deleted as what died by itself is: after the grace, up to its version. That must be able
// to hit nothing else, so that only a number which was given out, and whose stripe is not
// there, qualifies: under one that is still to come a chunk may be put while the deletion
// is on its way.
func (m *Machine) dropChunks(t *tx, op *wire.DropChunks) (*wire.MetaResponse, error) {
	if err := t.mustSpeak("drop chunks", LevelDrops); err != nil {
		return nil, err
	}
	if len(op.GetChunks()) > maxDropped {
		return nil, fail(moraine.TooLarge, "drop chunks", "", "%d chunks, %d at most", len(op.GetChunks()), maxDropped)
	}
	reply := &wire.DropChunksReply{}
	for _, w := range op.GetChunks() {
		ok, err := m.dropChunk(t, w)
		if err != nil {
			return nil, err
		}
		if ok {
			reply.Dropped++
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_DropChunks{DropChunks: reply}}, nil
}

// dropChunk lets one die, and reports whether it does, or did before.
func (m *Machine) dropChunk(t *tx, w *wire.DroppedChunk) (bool, error) {
	device := moraine.DeviceID(w.GetDevice())
	chunk := moraine.ChunkID{Stripe: moraine.StripeID(w.GetStripe()), Index: uint8(w.GetIndex())}
	if w.GetIndex() >= moraine.MaxChunks || w.GetVersion() == 0 || w.GetVersion() == math.MaxUint32 {
		return false, nil // no deletion is of the last version: there is none below which it is
	}
	if d, err := t.lookDevice(device); err != nil || d == nil || d.State == record.DeviceRetired {
		return false, err // what a device had that is gone is not deleted
	}
	if numbered, err := t.numbered(chunk.Stripe); err != nil || !numbered {
		return false, err
	}
	if s, err := t.stripe(chunk.Stripe); err != nil || s != nil {
		return false, err
	}
	below := moraine.LayoutVersion(w.GetVersion()) + 1
	tomb, _, dead, err := t.tombstoneOf(device, chunk)
	if err != nil || (dead && tomb.Below >= below) {
		return dead, err // the first answer was lost
	}
	v, err := m.ClassifyChunk(t.r, device, &wire.ChunkReport{Stripe: w.GetStripe(), Index: w.GetIndex(), Version: w.GetVersion()}, 0)
	if err != nil || v.Fate != Unknown {
		return false, err
	}
	return true, m.addTombstone(t, device, chunk, below, int64(w.GetLength()), false)
}

// numbered reports whether a stripe of that number was granted: no other will be.
func (t *tx) numbered(id moraine.StripeID) (bool, error) {
	c, err := t.cluster()
	if err != nil || moraine.ID(id).Partition() != t.k.p || id == 0 {
		return false, err
	}
	in := moraine.ID(id).Incarnation()
	return in < c.Incarnation || (in == c.Incarnation && moraine.ID(id).Counter() <= t.count[record.CStripe]), nil
}
