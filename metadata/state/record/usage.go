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
func (u Usage) Encode() []byte { return u.fields(encoder(16)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (u *Usage) Decode(b []byte) error { return u.fields(decoder(b)).End("usage") }

func (u *Usage) fields(c *codec) *codec {
	c.version(usageVersion)
	c.varint(&u.Bytes)
	c.varint(&u.Inodes)
	if c.more(u.Steps != 0) {
		if c.varint(&u.Steps); u.Steps == 0 {
			c.fail(errors.New("the count of checkpoints is 0, and should not be there"))
		}
	}
	if u.Zero() {
		c.fail(errors.New("all counts are 0, and the record should not be there"))
	}
	return c
}

// counts is the usage as part of another record, where each count has its place.
func (u *Usage) counts(c *codec) {
	c.varint(&u.Bytes)
	c.varint(&u.Inodes)
	c.varint(&u.Steps)
}

const heightVersion = 1

// EncodeHeight returns the stored value of a directory's height.
func EncodeHeight(height uint32) []byte { return heightFields(encoder(6), &height).B }

// DecodeHeight decodes the height of a directory.
func DecodeHeight(b []byte) (height uint32, err error) {
	err = heightFields(decoder(b), &height).End("height")
	return height, err
}

func heightFields(c *codec, height *uint32) *codec {
	c.version(heightVersion)
	if uvarint(c, height); *height == 0 {
		c.fail(errors.New("a height of 0 is not written"))
	}
	return c
}
