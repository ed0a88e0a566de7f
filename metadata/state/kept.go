package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A stripe dies when no file names it any more: it was removed, written over, evicted,
// rewritten or packed. A backup of the metadata from before still names it. So the tombstones
// of its chunks stand in a table of their own, and the leader has these chunks deleted after
// the backup horizon only, or earlier on a device that becomes full.
//
// What else dies needs no such time. A chunk that a drain, a repair or a move has replaced
// lives on with the same bytes: a restored record adopts it there (adopt.go). What was put
// under an intent that ended was in no record. A chunk that was in memory alone, and is gone, is
// nowhere. One that may be in memory still is kept: it is written out as any other.

// keptOn is how much of a device is kept for backups.
type keptOn struct {
	bytes, chunks uint64
	// gone is when, in cluster time, the youngest of them died that was deleted: what died
	// later is still there.
	gone uint64
}

const keptOnVersion = 1

func (k keptOn) encode() []byte {
	return putUvarint(putUvarint(putUvarint(newValue(keptOnVersion, 16), k.bytes), k.chunks), k.gone)
}

func decodeKeptOn(b []byte) (keptOn, error) {
	d := dec{b: b}
	d.version(keptOnVersion)
	k := keptOn{bytes: d.uvarint(), chunks: d.uvarint(), gone: d.uvarint()}
	return k, d.end("what is kept on a device")
}

func (v *view) keptOn(id moraine.DeviceID) (keptOn, error) {
	b, ok, err := v.r.Get(v.k.keptOn(id))
	if err != nil || !ok {
		return keptOn{}, err
	}
	return decodeKeptOn(b)
}

// keeps counts a tombstone that comes (1) or goes (-1), if it is one that is kept.
func (t *tx) keeps(id moraine.DeviceID, s tombstone, n int64) error {
	if !s.kept {
		return nil
	}
	k, err := t.keptOn(id)
	if err != nil {
		return err
	}
	k.bytes += uint64(n * s.bytes)
	k.chunks += uint64(n)
	t.count[cKeptBytes] += uint64(n * s.bytes)
	t.put(t.k.keptOn(id), k.encode())
	return nil
}

// gaveBack notes that what died at a time is deleted.
func (t *tx) gaveBack(id moraine.DeviceID, s tombstone, since uint64) error {
	if !s.kept {
		return nil
	}
	k, err := t.keptOn(id)
	if err != nil {
		return err
	}
	if since > k.gone {
		k.gone = since
		t.put(t.k.keptOn(id), k.encode())
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
	return Kept{Bytes: k.bytes, Used: k.bytes + k.chunks*recordOverhead, Gone: k.gone}, err
}

// KeptTombstones returns at most limit deletions for a device, of what is kept for backups:
// what has been dead since olderThan (0: nothing is that old) or longer, and, oldest first, as much of what died up to
// atMost as takes so many bytes on the device.
func (m *Machine) KeptTombstones(r Reader, id moraine.DeviceID, olderThan, atMost, bytes uint64, limit int) ([]*wire.Deletion, error) {
	var sum uint64
	return m.view(r).deletions(id, true, max(olderThan, atMost), limit, func(since uint64, s tombstone) bool {
		if (olderThan == 0 || since > olderThan) && sum >= bytes {
			return true
		}
		sum += uint64(s.bytes) + recordOverhead
		return false
	})
}

// deviceOfKey returns the device of a key that begins with one.
func deviceOfKey(key []byte) moraine.DeviceID {
	return moraine.DeviceID(binary.BigEndian.Uint32(key[3:]))
}
