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
func (s Tombstone) Encode() []byte { return s.fields(encoder(8)).B }

// DecodeTombstone decodes a tombstone; its key has the rest.
func DecodeTombstone(b []byte) (s Tombstone, err error) {
	err = s.fields(decoder(b)).End("tombstone")
	return s, err
}

func (s *Tombstone) fields(c *codec) *codec {
	c.version(tombstoneVersion)
	uvarint(c, &s.Below)
	uvarint(c, &s.Bytes)
	return c
}

// Place returns the value under TabTombstoneAt.
func (s Tombstone) Place(since uint64) []byte { return placeFields(encoder(9), &since, &s.Kept).B }

// DecodeTombstonePlace decodes the value under TabTombstoneAt.
func DecodeTombstonePlace(b []byte) (since uint64, kept bool, err error) {
	err = placeFields(decoder(b), &since, &kept).End("place of a tombstone")
	return since, kept, err
}

func placeFields(c *codec, since *uint64, kept *bool) *codec {
	c.version(tombstoneVersion)
	uvarint(c, since)
	c.bool(kept)
	return c
}

const presenceVersion = 1

// EncodePresence returns the value of a chunk in the index of devices: the log index at which it
// came there.
func EncodePresence(index uint64) []byte { return EncodeNumber(presenceVersion, index) }

// DecodePresence decodes the log index at which a chunk came to a device.
func DecodePresence(b []byte) (uint64, error) {
	return DecodeNumber[uint64](presenceVersion, b, "index of devices")
}
