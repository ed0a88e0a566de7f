package layout

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// The bytes of a small file can be in a record of the state. An extent names that record as it
// would name a stripe, so that overwrites, truncations and clones need no rule of their own.

// TakeInline adds a record with the whole content of a file, and returns the extent that names it.
// NoSpace means that the state has too much content already. The caller lays the extent in the same
// command.
func TakeInline(t *kvtx.Tx, op string, i *record.Inode, content []byte) (moraine.Extent, error) {
	ref := i.Id.String()
	if len(content) > moraine.MaxInline {
		return moraine.Extent{}, kvtx.Fail(moraine.TooLarge, op, ref, "the metadata keeps %d bytes of a file at most, and the content has %d", moraine.MaxInline, len(content))
	}
	if !RoomInline(t, len(content)) {
		return moraine.Extent{}, kvtx.Fail(moraine.NoSpace, op, ref, "the metadata keeps %d bytes of small files, and may keep no more: write the content to stripes", t.Count[record.CInlineBytes])
	}
	id, err := t.NextID(record.CInline)
	if err != nil {
		return moraine.Extent{}, err
	}
	e := moraine.Extent{Length: int64(len(content)), Inline: moraine.InlineID(id)}
	putInline(t, e.Inline, &record.Inline{Origin: i.Id, CRC: crc.Sum(content), Bytes: content})
	t.Count[record.CInlines]++
	t.Count[record.CInlineBytes] += uint64(len(content))
	return e, nil
}

// RoomInline reports whether the state may keep so many bytes more of small files. Content that a
// session has answered may take a sixteenth more: nobody waits who could write it to stripes.
func RoomInline(t *kvtx.Tx, n int) bool {
	limit := t.B.Space.InlineLimit
	if t.Answered {
		limit += limit / 16
	}
	return t.Count[record.CInlineBytes]+uint64(n) <= limit
}

// FullInline reports whether the state keeps more bytes of small files than it takes from those who wait.
func FullInline(t *kvtx.Tx) bool { return t.Count[record.CInlineBytes] > t.B.Space.InlineLimit }

func putInline(t *kvtx.Tx, id moraine.InlineID, r *record.Inline) { t.Put(t.K.Inline(id), r.Encode()) }

// Inline returns a record that an extent names. Its absence is damage.
func Inline(v *kvtx.View, id moraine.InlineID) (*record.Inline, error) {
	b, ok, err := v.R.Get(v.K.Inline(id))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, kvtx.Corrupt("inline content", id.String(), "an extent refers to the content, which has no record")
	}
	r := &record.Inline{}
	return r, r.Decode(b)
}

// InlineBytes returns the bytes of an extent in the state, with their CRC32C. Corrupt means that the
// record does not have the bytes that it was made with.
func InlineBytes(v *kvtx.View, e moraine.Extent) (content []byte, sum uint32, err error) {
	r, err := Inline(v, e.Inline)
	if err != nil {
		return nil, 0, err
	}
	if e.StripeOffset+e.Length > int64(len(r.Bytes)) || crc.Sum(r.Bytes) != r.CRC {
		return nil, 0, kvtx.Corrupt("inline content", e.Inline.String(), "the record does not match its checksum, or has fewer bytes than its file")
	}
	if e.Length == int64(len(r.Bytes)) {
		return r.Bytes, r.CRC, nil
	}
	// What the file no longer refers to stays here: its reader may not be allowed to see it.
	content = r.Bytes[e.StripeOffset : e.StripeOffset+e.Length]
	return content, crc.Sum(content), nil
}

// useInline adds one user of a record.
func useInline(t *kvtx.Tx, id moraine.InlineID) error {
	r, err := Inline(&t.View, id)
	if err != nil {
		return err
	}
	r.Refs++
	putInline(t, id, r)
	return nil
}

// releaseInline removes one user. With the last one the record goes.
func releaseInline(t *kvtx.Tx, id moraine.InlineID) error {
	r, err := Inline(&t.View, id)
	if err != nil {
		return err
	}
	if r.Refs--; r.Refs > 0 {
		putInline(t, id, r)
		return nil
	}
	t.Del(t.K.Inline(id))
	t.Count[record.CInlines]--
	t.Count[record.CInlineBytes] -= uint64(len(r.Bytes))
	return nil
}

// SumInline counts the bytes that are in the state.
func SumInline(exts []moraine.Extent) (n int64) {
	for _, e := range exts {
		if e.Inline != 0 {
			n += e.Length
		}
	}
	return n
}
