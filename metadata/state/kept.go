package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

func (v *view) keptOn(id moraine.DeviceID) (record.KeptOn, error) {
	b, ok, err := v.r.Get(v.k.keptOn(id))
	if err != nil || !ok {
		return record.KeptOn{}, err
	}
	return record.DecodeKeptOn(b)
}

// keeps counts a tombstone that comes (1) or goes (-1), if it is one that is kept.
func (t *tx) keeps(id moraine.DeviceID, s record.Tombstone, n int64) error {
	if !s.Kept {
		return nil
	}
	k, err := t.keptOn(id)
	if err != nil {
		return err
	}
	k.Bytes += uint64(n * s.Bytes)
	k.Chunks += uint64(n)
	t.count[record.CKeptBytes] += uint64(n * s.Bytes)
	t.put(t.k.keptOn(id), k.Encode())
	return nil
}

// gaveBack notes that what died at a time is deleted.
func (t *tx) gaveBack(id moraine.DeviceID, s record.Tombstone, since uint64) error {
	if !s.Kept {
		return nil
	}
	k, err := t.keptOn(id)
	if err != nil {
		return err
	}
	if since > k.Gone {
		k.Gone = since
		t.put(t.k.keptOn(id), k.Encode())
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
func (m *Machine) KeptOn(r Reader, id moraine.DeviceID) (Kept, error) {
	k, err := m.view(r).keptOn(id)
	return Kept{Bytes: k.Bytes, Used: k.Bytes + k.Chunks*recordOverhead, Gone: k.Gone}, err
}

// KeptTombstones returns at most limit deletions for a device, of what is kept for backups:
// what has been dead since olderThan (0: nothing is that old) or longer, and, oldest first, as much of what died up to
// atMost as takes so many bytes on the device.
func (m *Machine) KeptTombstones(r Reader, id moraine.DeviceID, olderThan, atMost, bytes uint64, limit int) ([]*wire.Deletion, error) {
	var sum uint64
	return m.view(r).deletions(id, true, max(olderThan, atMost), limit, func(since uint64, s record.Tombstone) bool {
		if (olderThan == 0 || since > olderThan) && sum >= bytes {
			return true
		}
		sum += uint64(s.Bytes) + recordOverhead
		return false
	})
}

// deviceOfKey returns the device of a key that begins with one.
func deviceOfKey(key []byte) moraine.DeviceID {
	return moraine.DeviceID(binary.BigEndian.Uint32(key[3:]))
}
