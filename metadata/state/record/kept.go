package record

// A stripe dies when no file refers to it any more: the file was removed, overwritten, evicted,
// rewritten or packed. An older backup of the metadata may still refer to it. A separate table
// therefore has the tombstones of its chunks. The leader deletes these chunks only after the backup
// horizon, or earlier if the device is getting full.
//
// Other dead chunks need no such delay. A chunk that a drain, repair or move replaced still exists
// elsewhere with the same bytes, and a restored record adopts it there (adopt.go). A chunk written
// under an ended intent was in no record. A chunk that was only in memory and is gone cannot be
// kept. A chunk that may still be in memory is kept, since the device writes it out like any other.

// KeptOn is how much of a device is kept for backups.
type KeptOn struct {
	Bytes, Chunks uint64
	// Gone is the death, in cluster time, of the youngest deleted chunk. Every kept chunk that died
	// later is still there.
	Gone uint64
}

const keptOnVersion = 1

// Encode returns the stored value.
func (k KeptOn) Encode() []byte { return k.fields(encoder(16)).B }

// DecodeKeptOn decodes the totals of kept chunks of a device.
func DecodeKeptOn(b []byte) (k KeptOn, err error) {
	err = k.fields(decoder(b)).End("what is kept on a device")
	return k, err
}

func (k *KeptOn) fields(c *codec) *codec {
	c.version(keptOnVersion)
	uvarint(c, &k.Bytes)
	uvarint(c, &k.Chunks)
	uvarint(c, &k.Gone)
	return c
}
