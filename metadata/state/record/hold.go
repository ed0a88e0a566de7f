package record

import "github.com/morainefs/moraine"

const HoldVersion = 1

// Hold is a session's exclusive lease on a directory.
type Hold struct {
	Directory moraine.InodeID // 0: no directory
	Session   moraine.SessionID
	Since     uint64 // distinguishes it from the session's other leases on the directory
}

// Encode returns the stored value.
func (h Hold) Encode() []byte { return h.fields(encoder(16)).B }

// DecodeHold decodes the exclusive lease on dir.
func DecodeHold(dir moraine.InodeID, b []byte) (Hold, error) {
	h := Hold{Directory: dir}
	err := h.fields(decoder(b)).End("hold")
	return h, err
}

func (h *Hold) fields(c *codec) *codec {
	c.version(HoldVersion)
	fixed64(c, &h.Session)
	uvarint(c, &h.Since)
	return c
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
func (r *NumberRange) Encode() []byte { return r.fields(encoder(16 + len(r.Used))).B }

// DecodeRange decodes a range of inode numbers.
func DecodeRange(b []byte) (*NumberRange, error) {
	r := &NumberRange{}
	return r, r.fields(decoder(b)).End("range of numbers")
}

func (r *NumberRange) fields(c *codec) *codec {
	c.version(HoldVersion)
	fixed64(c, &r.First)
	uvarint(c, &r.Count)
	c.bytes(&r.Used)
	if r.Count == 0 || uint32(len(r.Used)) != (r.Count+7)/8 {
		c.fail(errShort)
	}
	return c
}
