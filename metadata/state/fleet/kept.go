package fleet

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

func keptOn(v *kvtx.View, id moraine.DeviceID) (record.KeptOn, error) {
	b, ok, err := v.R.Get(v.K.KeptOn(id))
	if err != nil || !ok {
		return record.KeptOn{}, err
	}
	return record.DecodeKeptOn(b)
}

// keeps updates the totals when a kept tombstone is added (n = 1) or removed (-1); it ignores other
// tombstones.
func keeps(t *kvtx.Tx, id moraine.DeviceID, s record.Tombstone, n int64) error {
	if !s.Kept {
		return nil
	}
	k, err := keptOn(&t.View, id)
	if err != nil {
		return err
	}
	k.Bytes += uint64(n * s.Bytes)
	k.Chunks += uint64(n)
	t.Count[record.CKeptBytes] += uint64(n * s.Bytes)
	t.Put(t.K.KeptOn(id), k.Encode())
	return nil
}

// gaveBack records that a kept chunk that died at a time was deleted.
func gaveBack(t *kvtx.Tx, id moraine.DeviceID, s record.Tombstone, since uint64) error {
	if !s.Kept {
		return nil
	}
	k, err := keptOn(&t.View, id)
	if err != nil {
		return err
	}
	if since > k.Gone {
		k.Gone = since
		t.Put(t.K.KeptOn(id), k.Encode())
	}
	return nil
}

// Kept is how much a device keeps for backups.
type Kept struct {
	Bytes uint64 // bytes of the chunks, without the device's records for them
	// Used is approximately their space on the device, in bytes.
	Used uint64
	// Gone is the death, in cluster time, of the youngest deleted one.
	Gone uint64
}

// KeptOn returns how much a device keeps for backups.
func KeptOn(r *kvtx.View, id moraine.DeviceID) (Kept, error) {
	k, err := keptOn(r, id)
	return Kept{Bytes: k.Bytes, Used: k.Bytes + k.Chunks*recordOverhead, Gone: k.Gone}, err
}

// KeptTombstones returns at most limit deletions of kept chunks for a device. They are those dead
// since olderThan or longer (0: none). In addition, oldest first, those that died up to atMost,
// until they free the given bytes on the device.
func KeptTombstones(r *kvtx.View, id moraine.DeviceID, olderThan, atMost, bytes uint64, limit int) ([]*wire.Deletion, error) {
	var sum uint64
	return deletions(r, id, true, max(olderThan, atMost), limit, func(since uint64, s record.Tombstone) bool {
		if (olderThan == 0 || since > olderThan) && sum >= bytes {
			return true
		}
		sum += uint64(s.Bytes) + recordOverhead
		return false
	})
}

// DeviceOfKey returns the device at the start of a key.
func DeviceOfKey(key []byte) moraine.DeviceID {
	return moraine.DeviceID(binary.BigEndian.Uint32(key[3:]))
}
