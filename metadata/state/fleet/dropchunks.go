package fleet

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// maxDropped is the largest number of chunks in one DropChunks.
const maxDropped = 256

// DropChunks adds tombstones for unexplained chunks. Devices then delete them
// like any dead chunk: after the grace, up to their version. Such a deletion
// must not hit any other chunk. So it requires a stripe number that was issued
// and whose stripe does not exist. Under a future number a client could write a
// chunk while the deletion is on its way.
func DropChunks(t *kvtx.Tx, op *wire.DropChunks) (*wire.MetaResponse, error) {
	if len(op.GetChunks()) > maxDropped {
		return nil, kvtx.Fail(moraine.TooLarge, "drop chunks", "", "the command has %d chunks, %d at most", len(op.GetChunks()), maxDropped)
	}
	reply := &wire.DropChunksReply{}
	for _, w := range op.GetChunks() {
		ok, err := dropChunk(t, w)
		if err != nil {
			return nil, err
		}
		if ok {
			reply.Dropped++
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_DropChunks{DropChunks: reply}}, nil
}

// dropChunk drops one chunk; true if it is dead now or was before.
func dropChunk(t *kvtx.Tx, w *wire.DroppedChunk) (bool, error) {
	device := moraine.DeviceID(w.GetDevice())
	chunk := moraine.ChunkID{Stripe: moraine.StripeID(w.GetStripe()), Index: uint8(w.GetIndex())}
	if w.GetIndex() >= moraine.MaxChunks || w.GetVersion() == 0 || w.GetVersion() == math.MaxUint32 {
		return false, nil // a deletion is of all versions below one, and none is above the last version
	}
	if d, err := LookDevice(&t.View, device); err != nil || d == nil || d.State == record.DeviceRetired {
		return false, err // chunks of a removed device are not deleted
	}
	if numbered, err := numbered(t, chunk.Stripe); err != nil || !numbered {
		return false, err
	}
	if s, err := Stripe(&t.View, chunk.Stripe); err != nil || s != nil {
		return false, err
	}
	below := moraine.LayoutVersion(w.GetVersion()) + 1
	tomb, _, dead, err := TombstoneOf(&t.View, device, chunk)
	if err != nil || (dead && tomb.Below >= below) {
		return dead, err // the first answer was lost
	}
	v, err := ClassifyChunk(&t.View, device, &wire.ChunkReport{Stripe: w.GetStripe(), Index: w.GetIndex(), Version: w.GetVersion()}, 0)
	if err != nil || v.Fate != Unknown {
		return false, err
	}
	return true, AddTombstone(t, device, chunk, below, int64(w.GetLength()), false)
}

// numbered reports whether a stripe number was granted. No number is granted twice.
func numbered(t *kvtx.Tx, id moraine.StripeID) (bool, error) {
	c, err := t.Cluster()
	if err != nil || moraine.ID(id).Partition() != t.K.P || id == 0 {
		return false, err
	}
	in := moraine.ID(id).Incarnation()
	return in < c.Incarnation || (in == c.Incarnation && moraine.ID(id).Counter() <= t.Count[record.CStripe]), nil
}
