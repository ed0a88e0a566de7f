package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// tombstoneOf returns the tombstone of a chunk on a device, and when it was
// left; false where there is none.
func (v *view) tombstoneOf(id moraine.DeviceID, chunk moraine.ChunkID) (s record.Tombstone, since uint64, ok bool, err error) {
	b, ok, err := v.r.Get(v.k.tombstoneAt(id, chunk))
	if err != nil || !ok {
		return s, 0, false, err
	}
	since, kept, err := record.DecodeTombstonePlace(b)
	if err != nil {
		return s, 0, false, err
	}
	b, ok, err = v.r.Get(v.k.tombstone(kept, id, since, chunk))
	if err == nil && !ok {
		err = &moraine.Error{Op: "tombstone", Ref: chunk.String(), Kind: moraine.Corrupt}
	}
	if err != nil {
		return s, 0, false, err
	}
	s, err = record.DecodeTombstone(b)
	s.Kept = kept
	return s, since, err == nil, err
}

// addTombstone leaves a tombstone for a chunk on a device, dead from now on; one that is there
// already is taken up in it. kept says that a record has named the chunk until now. A device
// that is retired needs none.
func (m *Machine) addTombstone(t *tx, id moraine.DeviceID, chunk moraine.ChunkID, below moraine.LayoutVersion, bytes int64, kept bool) error {
	d, err := t.lookDevice(id)
	if err != nil || d == nil || d.State == record.DeviceRetired {
		return err
	}
	old, since, ok, err := t.tombstoneOf(id, chunk)
	if err != nil {
		return err
	}
	from := t.clusterTime()
	write := t.insert // nothing has to be looked up
	if ok {
		if err := t.dropTombstone(id, chunk, old, since); err != nil {
			return err
		}
		below, from, kept, write = max(below, old.Below), max(from, since), kept || old.Kept, t.put
	}
	s := record.Tombstone{Below: below, Bytes: bytes, Kept: kept}
	write(t.k.tombstone(kept, id, from, chunk), s.Encode())
	write(t.k.tombstoneAt(id, chunk), s.Place(from))
	t.count[record.CPendingBytes] += uint64(bytes)
	t.events.Deletions = true
	return t.keeps(id, s, 1)
}

// dropTombstone takes a tombstone away.
func (t *tx) dropTombstone(id moraine.DeviceID, chunk moraine.ChunkID, s record.Tombstone, since uint64) error {
	t.del(t.k.tombstone(s.Kept, id, since, chunk))
	t.del(t.k.tombstoneAt(id, chunk))
	t.count[record.CPendingBytes] -= uint64(s.Bytes)
	return t.keeps(id, s, -1)
}

// MaxDeleted is the most deletions that one command acknowledges.
const MaxDeleted = 1024

// dropTombstones forgets what was deleted. A deletion of less than the
// tombstone says leaves it.
func (m *Machine) dropTombstones(t *tx, deleted []*wire.Deletion) (*wire.MetaResponse, error) {
	if len(deleted) > MaxDeleted {
		return nil, fail(moraine.TooLarge, "deleted chunks", "", "%d deletions, %d at most", len(deleted), MaxDeleted)
	}
	for _, w := range deleted {
		if w.GetIndex() >= moraine.MaxChunks {
			continue
		}
		id := moraine.DeviceID(w.GetDevice())
		chunk := moraine.ChunkID{Stripe: moraine.StripeID(w.GetStripe()), Index: uint8(w.GetIndex())}
		s, since, ok, err := t.tombstoneOf(id, chunk)
		if err != nil {
			return nil, err
		}
		if ok && moraine.LayoutVersion(w.GetBelow()) >= s.Below {
			if err := t.gaveBack(id, s, since); err != nil {
				return nil, err
			}
			if err := t.dropTombstone(id, chunk, s, since); err != nil {
				return nil, err
			}
		}
	}
	return done(), nil
}

// FreedBytes returns about how many bytes were freed on each device by deletions that are
// not acknowledged yet, each chunk counted as DeadBytes does.
func (m *Machine) FreedBytes(r Reader, deleted []*wire.Deletion) (map[uint32]uint64, error) {
	v := m.view(r)
	out := make(map[uint32]uint64)
	for _, w := range deleted[:min(len(deleted), MaxDeleted)] {
		if w.GetIndex() >= moraine.MaxChunks {
			continue
		}
		s, _, ok, err := v.tombstoneOf(moraine.DeviceID(w.GetDevice()), moraine.ChunkID{Stripe: moraine.StripeID(w.GetStripe()), Index: uint8(w.GetIndex())})
		if err != nil {
			return nil, err
		}
		if ok {
			out[w.GetDevice()] += uint64(s.Bytes) + recordOverhead
		}
	}
	return out, nil
}

// deletedChunks is dropTombstones for the host of the devices.
func (m *Machine) deletedChunks(t *tx, op *wire.DeletedChunks) (*wire.MetaResponse, error) {
	if t.caller.GetRole() == roleChunkserver {
		for _, w := range op.GetDeleted() {
			d, err := t.device(moraine.DeviceID(w.GetDevice()))
			if err != nil {
				return nil, err
			}
			if d == nil || d.Host != t.caller.GetNode() {
				return nil, fail(moraine.PermissionDenied, "deleted chunks", "device "+record.Utoa(uint64(w.GetDevice())), "it is not on %q", t.caller.GetNode())
			}
		}
	}
	return m.dropTombstones(t, op.GetDeleted())
}

// chunkOfKey returns the chunk that a key ends with.
func chunkOfKey(key []byte) moraine.ChunkID {
	n := len(key) - 1
	return moraine.ChunkID{Stripe: moraine.StripeID(binary.BigEndian.Uint64(key[n-8:])), Index: key[n]}
}

// deviceTombstones calls fn with the tombstones of a device that are in one table, oldest
// first, until it returns false.
func (v *view) deviceTombstones(id moraine.DeviceID, kept bool, fn func(chunk moraine.ChunkID, since uint64, s record.Tombstone) bool) error {
	var bad error
	prefix := v.k.tombstones(id)
	if kept {
		prefix = v.k.kept(id)
	}
	err := v.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var s record.Tombstone
		if s, bad = record.DecodeTombstone(value); bad != nil {
			return false
		}
		s.Kept = kept
		return fn(chunkOfKey(key), binary.BigEndian.Uint64(key[len(prefix):]), s)
	})
	if err == nil {
		err = bad
	}
	return err
}

// maxNeeded bounds the tombstones that one list of deletions passes over.
const maxNeeded = 4096

// Tombstones returns at most limit deletions for a device, of what no backup names and has
// been dead since olderThan (cluster time, milliseconds) or longer, oldest first. A chunk of a
// stripe that is lost is passed over: it may be what the stripe needs.
func (m *Machine) Tombstones(r Reader, id moraine.DeviceID, olderThan uint64, limit int) ([]*wire.Deletion, error) {
	return m.view(r).deletions(id, false, olderThan, limit, nil)
}

// deletions is Tombstones of one of the two tables. enough, if it is not nil, ends the list
// at the first tombstone that it returns true for.
func (v *view) deletions(id moraine.DeviceID, kept bool, olderThan uint64, limit int, enough func(since uint64, s record.Tombstone) bool) ([]*wire.Deletion, error) {
	var out []*wire.Deletion
	if limit <= 0 {
		return nil, nil
	}
	needed := 0
	var bad error
	err := v.deviceTombstones(id, kept, func(chunk moraine.ChunkID, since uint64, s record.Tombstone) bool {
		if since > olderThan || enough != nil && enough(since, s) {
			return false
		}
		var item *record.RepairItem
		if item, bad = v.repairOf(chunk.Stripe); bad != nil {
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
