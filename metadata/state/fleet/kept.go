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

// Keeps counts a tombstone that comes (1) or goes (-1), if it is one that is kept.
func Keeps(t *kvtx.Tx, id moraine.DeviceID, s record.Tombstone, n int64) error {
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

// GaveBack notes that what died at a time is deleted.
func GaveBack(t *kvtx.Tx, id moraine.DeviceID, s record.Tombstone, since uint64) error {
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

// Kept is what a device keeps for backups.
type Kept struct {
	Bytes uint64 // of chunks; what their records take on a device besides is not in it
	// Used is about how much they take on the device.
	Used uint64
	// Gone is when, in cluster time, the youngest of them died that was deleted.
	Gone uint64
}

// KeptOn returns what a device keeps for backups.
func KeptOn(r *kvtx.View, id moraine.DeviceID) (Kept, error) {
	k, err := keptOn(r, id)
	return Kept{Bytes: k.Bytes, Used: k.Bytes + k.Chunks*recordOverhead, Gone: k.Gone}, err
}

// KeptTombstones returns at most limit deletions for a device, of what is kept for backups:
// what has been dead since olderThan (0: nothing is that old) or longer, and, oldest first, as much of what died up to
// atMost as takes so many bytes on the device.
func KeptTombstones(r *kvtx.View, id moraine.DeviceID, olderThan, atMost, bytes uint64, limit int) ([]*wire.Deletion, error) {
	var sum uint64
	return Deletions(r, id, true, max(olderThan, atMost), limit, func(since uint64, s record.Tombstone) bool {
		if (olderThan == 0 || since > olderThan) && sum >= bytes {
			return true
		}
		sum += uint64(s.Bytes) + recordOverhead
		return false
	})
}

// DeviceOfKey returns the device of a key that begins with one.
func DeviceOfKey(key []byte) moraine.DeviceID {
	return moraine.DeviceID(binary.BigEndian.Uint32(key[3:]))
}
