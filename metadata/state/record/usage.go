package record

import "errors"

// What is below each directory is counted in a record of its own: the sizes of
// the files (as stat shows them: a hole counts, copies and parity do not) and
// how many inodes there are. An inode counts in the directory that its record
// names as parent, and in all above it; one with several names therefore once,
// and what has no parent (a file without a name, a removed tree) nowhere.
//
// No handler counts. At the end of each command the records of inodes that it
// wrote are held against what they were before it, and the difference goes up
// the tree: whatever a command does, the counts are what the records say.

// Usage is what is below a directory, itself not counted.
type Usage struct {
	Bytes  int64
	Inodes int64
	Steps  int64 // committed checkpoints: no user sees them, and they keep a tree where it is
}

const usageVersion = 1

func (u Usage) Add(o Usage) Usage {
	return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes, u.Steps + o.Steps}
}

func (u Usage) Neg() Usage { return Usage{-u.Bytes, -u.Inodes, -u.Steps} }

func (u Usage) Zero() bool { return u == Usage{} }

// Encode writes counts in zigzag form: they are never below 0, but where a
// record was damaged, what is told of it must have a form too.
// Checkpoints are written where there are any.
func (u Usage) Encode() []byte {
	b := putVarint(putVarint(newValue(usageVersion, 16), u.Bytes), u.Inodes)
	if u.Steps != 0 {
		b = putVarint(b, u.Steps)
	}
	return b
}

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

func DecodeHeight(b []byte) (uint32, error) {
	d := Dec{B: b}
	d.Version(heightVersion)
	height := d.U32()
	if d.Err == nil && height == 0 {
		d.fail(errors.New("a height of 0 is not written"))
	}
	return height, d.End("height")
}

func EncodeHeight(height uint32) []byte {
	return PutUvarint([]byte{heightVersion}, uint64(height))
}
