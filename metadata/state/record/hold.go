package record

import (
	"slices"

	"github.com/morainefs/moraine"
)

const HoldVersion = 1

// Hold is a session's exclusive lease on a directory.
type Hold struct {
	Directory moraine.InodeID // 0: no directory
	Session   moraine.SessionID
	Since     uint64 // distinguishes it from the session's other leases on the directory
}

// Encode returns the stored value.
func (h Hold) Encode() []byte {
	return PutUvarint(PutFixed64([]byte{HoldVersion}, uint64(h.Session)), h.Since)
}

// DecodeHold decodes the exclusive lease on dir.
func DecodeHold(dir moraine.InodeID, b []byte) (Hold, error) {
	d := Dec{B: b}
	d.Version(HoldVersion)
	h := Hold{Directory: dir, Session: moraine.SessionID(d.Fixed64())}
	h.Since = d.Uvarint()
	return h, d.End("hold")
}

// NumberRange is a range of inode numbers under which one session may create files. Its key has the
// session and the range's last number, as for a grant.
type NumberRange struct {
	First moraine.InodeID
	Count uint32
	Used  []byte // a bit for each number under which a file was created
}

// Last returns the last number of the range.
func (r *NumberRange) Last() moraine.InodeID { return r.First + moraine.InodeID(r.Count) - 1 }

// Encode returns the stored value.
func (r *NumberRange) Encode() []byte {
	b := PutFixed64([]byte{HoldVersion}, uint64(r.First))
	return PutBytes(PutUvarint(b, uint64(r.Count)), r.Used)
}

// DecodeRange decodes a range of inode numbers.
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
