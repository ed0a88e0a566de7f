package fleet

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// TombstoneOf returns a chunk's tombstone on a device and its cluster time; false if there is none.
func TombstoneOf(v *kvtx.View, id moraine.DeviceID, chunk moraine.ChunkID) (s record.Tombstone, since uint64, ok bool, err error) {
	b, ok, err := v.R.Get(v.K.TombstoneAt(id, chunk))
	if err != nil || !ok {
		return s, 0, false, err
	}
	since, kept, err := record.DecodeTombstonePlace(b)
	if err != nil {
		return s, 0, false, err
	}
	b, ok, err = v.R.Get(v.K.Tombstone(kept, id, since, chunk))
	if err == nil && !ok {
		err = kvtx.Corrupt("tombstone", chunk.String(), "the index has a tombstone without a record on device %d", id)
	}
	if err != nil {
		return s, 0, false, err
	}
	s, err = record.DecodeTombstone(b)
	s.Kept = kept
	return s, since, err == nil, err
}

// AddTombstone adds a tombstone for a chunk on a device, dead from now on. It merges with a present
// one. kept says that a record named the chunk until now. A retired device needs no tombstones.
func AddTombstone(t *kvtx.Tx, id moraine.DeviceID, chunk moraine.ChunkID, below moraine.LayoutVersion, bytes int64, kept bool) error {
	d, err := LookDevice(&t.View, id)
	if err != nil || d == nil || d.State == record.DeviceRetired {
		return err
	}
	old, since, ok, err := TombstoneOf(&t.View, id, chunk)
	if err != nil {
		return err
	}
	from := t.ClusterTime()
	write := t.Insert // no earlier tombstone to look up
	if ok {
		if err := DropTombstone(t, id, chunk, old, since); err != nil {
			return err
		}
		below, from, kept, write = max(below, old.Below), max(from, since), kept || old.Kept, t.Put
	}
	s := record.Tombstone{Below: below, Bytes: bytes, Kept: kept}
	write(t.K.Tombstone(kept, id, from, chunk), s.Encode())
	write(t.K.TombstoneAt(id, chunk), s.Place(from))
	t.Count[record.CPendingBytes] += uint64(bytes)
	t.Events.Deletions = true
	return keeps(t, id, s, 1)
}

// DropTombstone removes a tombstone.
func DropTombstone(t *kvtx.Tx, id moraine.DeviceID, chunk moraine.ChunkID, s record.Tombstone, since uint64) error {
	t.Del(t.K.Tombstone(s.Kept, id, since, chunk))
	t.Del(t.K.TombstoneAt(id, chunk))
	t.Count[record.CPendingBytes] -= uint64(s.Bytes)
	return keeps(t, id, s, -1)
}

// MaxDeleted is the largest number of deletions that one command acknowledges.
const MaxDeleted = 1024

// DropTombstones removes the tombstones of deleted chunks. It keeps a tombstone if the deletion
// covered fewer versions. That of a chunk which was in memory alone stays for the grace.
func DropTombstones(t *kvtx.Tx, deleted []*wire.Deletion) (*wire.MetaResponse, error) {
	if len(deleted) > MaxDeleted {
		return nil, kvtx.Fail(moraine.TooLarge, "deleted chunks", "", "the request has %d deletions, %d at most", len(deleted), MaxDeleted)
	}
	for _, w := range deleted {
		if w.GetIndex() >= moraine.MaxChunks {
			continue
		}
		id := moraine.DeviceID(w.GetDevice())
		chunk := moraine.ChunkID{Stripe: moraine.StripeID(w.GetStripe()), Index: uint8(w.GetIndex())}
		s, since, ok, err := TombstoneOf(&t.View, id, chunk)
		if err != nil {
			return nil, err
		}
		if !ok || moraine.LayoutVersion(w.GetBelow()) < s.Below {
			continue
		}
		if w.GetInMemory() {
			err = neverOnDevice(t, id, chunk, s, since)
		} else if err = gaveBack(t, id, s, since); err == nil {
			err = DropTombstone(t, id, chunk, s, since)
		}
		if err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// FreedBytes returns approximately the bytes freed on each device by deletions that are not
// acknowledged yet. It counts each chunk as DeadBytes does.
func FreedBytes(v *kvtx.View, deleted []*wire.Deletion) (map[uint32]uint64, error) {
	out := make(map[uint32]uint64)
	for _, w := range deleted[:min(len(deleted), MaxDeleted)] {
		if w.GetIndex() >= moraine.MaxChunks {
			continue
		}
		s, _, ok, err := TombstoneOf(v, moraine.DeviceID(w.GetDevice()), moraine.ChunkID{Stripe: moraine.StripeID(w.GetStripe()), Index: uint8(w.GetIndex())})
		if err != nil {
			return nil, err
		}
		if ok {
			out[w.GetDevice()] += uint64(s.Bytes) + recordOverhead
		}
	}
	return out, nil
}

// DeletedChunks is DropTombstones for the host of the devices.
func DeletedChunks(t *kvtx.Tx, op *wire.DeletedChunks) (*wire.MetaResponse, error) {
	if t.Caller.GetRole() == kvtx.RoleChunkserver {
		for _, w := range op.GetDeleted() {
			d, err := Device(&t.View, moraine.DeviceID(w.GetDevice()))
			if err != nil {
				return nil, err
			}
			if d == nil || d.Host != t.Caller.GetNode() {
				return nil, kvtx.Fail(moraine.PermissionDenied, "deleted chunks", "device "+record.Utoa(uint64(w.GetDevice())), "the device is not on host %q", t.Caller.GetNode())
			}
		}
	}
	return DropTombstones(t, op.GetDeleted())
}

// ChunkOfKey returns the chunk at the end of a key.
func ChunkOfKey(key []byte) moraine.ChunkID {
	n := len(key) - 1
	return moraine.ChunkID{Stripe: moraine.StripeID(binary.BigEndian.Uint64(key[n-8:])), Index: key[n]}
}

// DeviceTombstones calls fn with a device's tombstones in one table, oldest first, until fn returns
// false.
func DeviceTombstones(v *kvtx.View, id moraine.DeviceID, kept bool, fn func(chunk moraine.ChunkID, since uint64, s record.Tombstone) bool) error {
	prefix := v.K.Tombstones(id)
	if kept {
		prefix = v.K.Kept(id)
	}
	return v.EachIn(prefix, func(key, value []byte) (bool, error) {
		s, err := record.DecodeTombstone(value)
		if err != nil {
			return false, err
		}
		s.Kept = kept
		return fn(ChunkOfKey(key), binary.BigEndian.Uint64(key[len(prefix):]), s), nil
	})
}

// maxNeeded bounds the tombstones that one list of deletions skips.
const maxNeeded = 4096

// Tombstones returns at most limit deletions for a device, oldest first. The chunks are in no
// backup and have been dead since olderThan or longer, in milliseconds of cluster time. It skips
// chunks of lost stripes, which may need them.
func Tombstones(r *kvtx.View, id moraine.DeviceID, olderThan uint64, limit int) ([]*wire.Deletion, error) {
	return deletions(r, id, false, olderThan, limit, nil)
}

// deletions is Tombstones for one of the two tables. If enough is not nil, the list ends at the
// first tombstone for which it returns true.
func deletions(v *kvtx.View, id moraine.DeviceID, kept bool, olderThan uint64, limit int, enough func(since uint64, s record.Tombstone) bool) ([]*wire.Deletion, error) {
	var out []*wire.Deletion
	if limit <= 0 {
		return nil, nil
	}
	needed := 0
	var bad error
	err := DeviceTombstones(v, id, kept, func(chunk moraine.ChunkID, since uint64, s record.Tombstone) bool {
		if since > olderThan || enough != nil && enough(since, s) {
			return false
		}
		var item *record.RepairItem
		if item, bad = RepairOf(v, chunk.Stripe); bad != nil {
			return false
		}
		if item != nil && item.Lost() {
			needed++
			return needed < maxNeeded
		}
		out = append(out, &wire.Deletion{Device: uint32(id), Stripe: uint64(chunk.Stripe), Index: uint32(chunk.Index), Below: uint32(s.Below)})
		return len(out) < limit
	})
	if err == nil {
		err = bad
	}
	return out, err
}
