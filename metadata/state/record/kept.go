package record

// A stripe dies when no file names it any more: it was removed, written over, evicted,
// rewritten or packed. A backup of the metadata from before still names it. So the tombstones
// of its chunks stand in a table of their own, and the leader has these chunks deleted after
// the backup horizon only, or earlier on a device that becomes full.
//
// What else dies needs no such time. A chunk that a drain, a repair or a move has replaced
// lives on with the same bytes: a restored record adopts it there (adopt.go). What was put
// under an intent that ended was in no record. A chunk that was in memory alone, and is gone, is
// nowhere. One that may be in memory still is kept: it is written out as any other.

// KeptOn is how much of a device is kept for backups.
type KeptOn struct {
	Bytes, Chunks uint64
	// gone is when, in cluster time, the youngest of them died that was deleted: what died
	// later is still there.
	Gone uint64
}

const keptOnVersion = 1

func (k KeptOn) Encode() []byte {
	return PutUvarint(PutUvarint(PutUvarint(newValue(keptOnVersion, 16), k.Bytes), k.Chunks), k.Gone)
}

func DecodeKeptOn(b []byte) (KeptOn, error) {
	d := Dec{B: b}
	d.Version(keptOnVersion)
	k := KeptOn{Bytes: d.Uvarint(), Chunks: d.Uvarint(), Gone: d.Uvarint()}
	return k, d.End("what is kept on a device")
}
