package record

import "github.com/morainefs/moraine"

// Tombstone says that a chunk on a device is dead: what was put under a layout
// version below `below` is to be deleted. It stands under the cluster time of
// the death, so that the oldest are met first, and is found by its chunk under
// tabTombstoneAt. A chunk that a record named when it died may be named by a backup too: its
// tombstone is in a table of its own (kept.go).
type Tombstone struct {
	Below moraine.LayoutVersion
	Bytes int64
	Kept  bool // by its key: it is in tabKept
}

const tombstoneVersion = 1

func (s Tombstone) Encode() []byte {
	return PutUvarint(PutUvarint(newValue(tombstoneVersion, 8), uint64(s.Below)), uint64(s.Bytes))
}

func DecodeTombstone(b []byte) (Tombstone, error) {
	d := Dec{B: b}
	d.Version(tombstoneVersion)
	s := Tombstone{Below: moraine.LayoutVersion(d.U32()), Bytes: int64(d.Uvarint())}
	return s, d.End("tombstone")
}

// Place is the value under tabTombstoneAt.
func (s Tombstone) Place(since uint64) []byte {
	b := PutUvarint(newValue(tombstoneVersion, 9), since)
	if s.Kept {
		return append(b, 1)
	}
	return append(b, 0)
}

func DecodeTombstonePlace(b []byte) (since uint64, kept bool, err error) {
	d := Dec{B: b}
	d.Version(tombstoneVersion)
	since, kept = d.Uvarint(), d.bool()
	return since, kept, d.End("place of a tombstone")
}

// presence is the value of a chunk in the index of devices: the log index at
// which it came there.
func EncodePresence(index uint64) []byte {
	return PutUvarint(newValue(presenceVersion, 8), index)
}

const presenceVersion = 1

func DecodePresence(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(presenceVersion)
	at := d.Uvarint()
	return at, d.End("index of devices")
}
