package record

import "github.com/morainefs/moraine"

// LevelLost is the level of a file that has lost bytes which were in memory alone:
// they are at none. It has content, unlike other files without a level.
const LevelLost moraine.Level = 0

// Lost reports whether bytes of the file were in memory alone, and are gone.
func (i *Inode) Lost() bool { return i.Content != 0 && i.Level == LevelLost }

// UnsafeFile is a row.
type UnsafeFile struct {
	Generation moraine.Generation
	UpTo       int64 // below this all is at nvme
	// Of a file that is recorded as lost, where that needs more than one look. With found
	// something was lost at mark. Without, nothing was between upTo and mark, by the look
	// for what is lost that is under way; 0: it has not begun.
	Mark  int64
	Found bool
}

const unsafeVersion = 1

func (u UnsafeFile) Encode() []byte {
	b := PutUvarint(PutFixed64([]byte{unsafeVersion}, uint64(u.Generation)), uint64(u.UpTo))
	return putBool(PutUvarint(b, uint64(u.Mark)), u.Found)
}

func (u *UnsafeFile) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(unsafeVersion)
	u.Generation, u.UpTo = moraine.Generation(d.Fixed64()), int64(d.Uvarint())
	u.Mark, u.Found = int64(d.Uvarint()), d.bool()
	return d.End("file below nvme")
}
