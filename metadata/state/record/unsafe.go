package record

import "github.com/morainefs/moraine"

// LevelLost is the level of a file that lost bytes which were only in memory. Unlike other files
// without a level it has content.
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
func (u UnsafeFile) Encode() []byte {
	b := PutUvarint(PutFixed64([]byte{unsafeVersion}, uint64(u.Generation)), uint64(u.UpTo))
	return putBool(PutUvarint(b, uint64(u.Mark)), u.Found)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (u *UnsafeFile) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(unsafeVersion)
	u.Generation, u.UpTo = moraine.Generation(d.Fixed64()), int64(d.Uvarint())
	u.Mark, u.Found = int64(d.Uvarint()), d.bool()
	return d.End("file below nvme")
}
