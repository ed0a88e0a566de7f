package record

import "github.com/morainefs/moraine"

// Tombstone says that a chunk on a device is dead: the device must delete versions of it below
// Below. Its key begins with the cluster time of the death, so that scans find the oldest first.
// TabTombstoneAt finds it by chunk. A chunk that was named by a record when it died may also be in
// a backup; its tombstone is in a separate table (kept.go).
type Tombstone struct {
	Below moraine.LayoutVersion
	Bytes int64
	Kept  bool // from its key: it is in TabKept
}

const tombstoneVersion = 1

// Encode returns the stored value.
func (s Tombstone) Encode() []byte {
	return PutUvarint(PutUvarint(newValue(tombstoneVersion, 8), uint64(s.Below)), uint64(s.Bytes))
}

// DecodeTombstone decodes a tombstone; its key has the rest.
func DecodeTombstone(b []byte) (Tombstone, error) {
	d := Dec{B: b}
	d.Version(tombstoneVersion)
	s := Tombstone{Below: moraine.LayoutVersion(d.U32()), Bytes: int64(d.Uvarint())}
	return s, d.End("tombstone")
}

// Place returns the value under TabTombstoneAt.
func (s Tombstone) Place(since uint64) []byte {
	b := PutUvarint(newValue(tombstoneVersion, 9), since)
	if s.Kept {
		return append(b, 1)
	}
	return append(b, 0)
}

// DecodeTombstonePlace decodes the value under TabTombstoneAt.
func DecodeTombstonePlace(b []byte) (since uint64, kept bool, err error) {
	d := Dec{B: b}
	d.Version(tombstoneVersion)
	since, kept = d.Uvarint(), d.bool()
	return since, kept, d.End("place of a tombstone")
}

// EncodePresence returns the value of a chunk in the index of devices: the log index at which it
// came there.
func EncodePresence(index uint64) []byte {
	return PutUvarint(newValue(presenceVersion, 8), index)
}

const presenceVersion = 1

// DecodePresence decodes the log index at which a chunk came to a device.
func DecodePresence(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(presenceVersion)
	at := d.Uvarint()
	return at, d.End("index of devices")
}
