package record

import "errors"

// A record for each directory has the usage below it: the sizes of files as stat shows them (holes
// count, copies and parity do not) and the number of inodes. An inode counts in the directory that
// its record names as parent, and in all above. An inode with several names therefore counts once.
// One without a parent, such as a file without a name or a removed tree, does not count.
//
// Handlers do not count. At the end of each command the inode records that it wrote are compared
// with their previous versions, and the difference is added up the tree. The counts therefore
// always match the records.

// Usage is what is below a directory, not counting the directory itself.
type Usage struct {
	Bytes  int64
	Inodes int64
	Steps  int64 // committed checkpoints: users do not see this count, and a tree with checkpoints cannot move
}

const usageVersion = 1

// Add returns the sum.
func (u Usage) Add(o Usage) Usage {
	return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes, u.Steps + o.Steps}
}

// Neg returns the negated usage.
func (u Usage) Neg() Usage { return Usage{-u.Bytes, -u.Inodes, -u.Steps} }

// Zero reports whether all counts are 0.
func (u Usage) Zero() bool { return u == Usage{} }

// Encode writes counts in zigzag form. Correct counts are never negative, but counts computed from
// a damaged record may be, and reports of them need an encoding too. The count of checkpoints is
// written only if it is not 0.
func (u Usage) Encode() []byte {
	b := putVarint(putVarint(newValue(usageVersion, 16), u.Bytes), u.Inodes)
	if u.Steps != 0 {
		b = putVarint(b, u.Steps)
	}
	return b
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (u *Usage) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(usageVersion)
	u.Bytes, u.Inodes = d.varint(), d.varint()
	if d.Err == nil && len(d.B) > 0 {
		if u.Steps = d.varint(); u.Steps == 0 {
			d.fail(errors.New("a count of no checkpoints is not written"))
		}
	}
	if d.Err == nil && u.Zero() {
		d.fail(errors.New("nothing is counted, and the record should not be there"))
	}
	return d.End("usage")
}

const heightVersion = 1

// DecodeHeight decodes the height of a directory.
func DecodeHeight(b []byte) (uint32, error) {
	d := Dec{B: b}
	d.Version(heightVersion)
	height := d.U32()
	if d.Err == nil && height == 0 {
		d.fail(errors.New("a height of 0 is not written"))
	}
	return height, d.End("height")
}

// EncodeHeight returns the stored value of a directory's height.
func EncodeHeight(height uint32) []byte {
	return PutUvarint([]byte{heightVersion}, uint64(height))
}
