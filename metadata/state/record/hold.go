package record

import (
	"slices"

	"github.com/morainefs/moraine"
)

const HoldVersion = 1

// Hold is the exclusive lease of a session on a directory.
type Hold struct {
	Directory moraine.InodeID // 0: it was not
	Session   moraine.SessionID
	Since     uint64 // tells it from earlier and later ones of the session
}

func (h Hold) Encode() []byte {
	return PutUvarint(PutFixed64([]byte{HoldVersion}, uint64(h.Session)), h.Since)
}

func DecodeHold(dir moraine.InodeID, b []byte) (Hold, error) {
	d := Dec{B: b}
	d.Version(HoldVersion)
	h := Hold{Directory: dir, Session: moraine.SessionID(d.Fixed64())}
	h.Since = d.Uvarint()
	return h, d.End("hold")
}

// NumberRange is inode numbers that one session may make files of. Its key is the
// session and its last number, as with a grant.
type NumberRange struct {
	First moraine.InodeID
	Count uint32
	Used  []byte // a bit for each number that a file was made of
}

func (r *NumberRange) Last() moraine.InodeID { return r.First + moraine.InodeID(r.Count) - 1 }

func (r *NumberRange) Encode() []byte {
	b := PutFixed64([]byte{HoldVersion}, uint64(r.First))
	return PutBytes(PutUvarint(b, uint64(r.Count)), r.Used)
}

func DecodeRange(b []byte) (*NumberRange, error) {
	d := Dec{B: b}
	d.Version(HoldVersion)
	r := &NumberRange{First: moraine.InodeID(d.Fixed64()), Count: d.U32()}
	r.Used = slices.Clone(d.bytes())
	if d.Err == nil && (r.Count == 0 || uint32(len(r.Used)) != (r.Count+7)/8) {
		d.fail(errShort)
	}
	return r, d.End("range of numbers")
}
