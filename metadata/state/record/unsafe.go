package record

import "github.com/morainefs/moraine"

// LevelLost is the level of a file that lost bytes which were only in memory. A file without
// content also has level 0.
const LevelLost moraine.Level = 0

// Lost reports whether bytes of the file were only in memory and are gone.
func (i *Inode) Lost() bool { return i.Content != 0 && i.Level == LevelLost }

// UnsafeFile is the row of a file that may be below level nvme.
type UnsafeFile struct {
	Generation moraine.Generation
	UpTo       int64 // all bytes below this offset are at nvme
	// For a file recorded as lost whose inspection needs several commands. If Found is set,
	// something at Mark was lost. Otherwise the present inspection found nothing between UpTo and
	// Mark; 0 means that it has not begun.
	Mark  int64
	Found bool
}

const unsafeVersion = 1

// Encode returns the stored value.
func (u UnsafeFile) Encode() []byte { return u.fields(encoder(32)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (u *UnsafeFile) Decode(b []byte) error { return u.fields(decoder(b)).End("file below nvme") }

func (u *UnsafeFile) fields(c *codec) *codec {
	c.version(unsafeVersion)
	fixed64(c, &u.Generation)
	uvarint(c, &u.UpTo)
	uvarint(c, &u.Mark)
	c.bool(&u.Found)
	return c
}
