package record

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// ConcatJob is the cursor of a concatenation. The job's target is the file.
type ConcatJob struct {
	Parent  moraine.InodeID // where the file will appear
	Name    string
	Replace bool
	Expect  *wire.Expect    // condition on the name's previous owner; nil: none
	Consume moraine.InodeID // directory removed with the publication; 0: none
	Mtime   int64
	// The requester's session: its scope and its files without a name.
	Root    moraine.InodeID
	Session moraine.SessionID

	Ranges uint64 // total number of ranges
	Next   uint64 // first range that is not consumed
	// Of range Next: the bytes taken so far, and their source.
	Taken      int64
	Generation moraine.Generation
}

const concatVersion = 1

// Encode returns the stored value.
func (c *ConcatJob) Encode() []byte {
	b := PutString(PutFixed64([]byte{concatVersion}, uint64(c.Parent)), c.Name)
	b = PutFixed64(PutFixed64(putBool(b, c.Replace), uint64(c.Consume)), uint64(c.Mtime))
	b = PutFixed64(PutFixed64(b, uint64(c.Root)), uint64(c.Session))
	b = PutUvarint(PutUvarint(PutUvarint(b, c.Ranges), c.Next), uint64(c.Taken))
	b = putBool(PutFixed64(b, uint64(c.Generation)), c.Expect != nil)
	if c.Expect == nil {
		return b
	}
	return PutFixed64(PutFixed64(PutFixed64(b, c.Expect.Inode), c.Expect.Generation), uint64(c.Expect.Ctime))
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (c *ConcatJob) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(concatVersion)
	c.Parent, c.Name, c.Replace = moraine.InodeID(d.Fixed64()), d.string(), d.bool()
	c.Consume, c.Mtime = moraine.InodeID(d.Fixed64()), int64(d.Fixed64())
	c.Root, c.Session = moraine.InodeID(d.Fixed64()), moraine.SessionID(d.Fixed64())
	c.Ranges, c.Next, c.Taken = d.Uvarint(), d.Uvarint(), int64(d.Uvarint())
	c.Generation = moraine.Generation(d.Fixed64())
	if d.bool() {
		c.Expect = &wire.Expect{Inode: d.Fixed64(), Generation: d.Fixed64(), Ctime: int64(d.Fixed64())}
	}
	return d.End("concatenation")
}

// ConcatRange is a range of a source; length 0 means up to its end.
type ConcatRange struct {
	Inode          moraine.InodeID
	Generation     moraine.Generation // 0: any generation
	Offset, Length int64
}

// EncodeConcatRow returns the stored value of a row of ranges.
func EncodeConcatRow(ranges []ConcatRange) []byte {
	b := PutUvarint(append(make([]byte, 0, 3+24*len(ranges)), concatVersion), uint64(len(ranges)))
	for _, r := range ranges {
		b = PutFixed64(PutFixed64(b, uint64(r.Inode)), uint64(r.Generation))
		b = PutUvarint(PutUvarint(b, uint64(r.Offset)), uint64(r.Length))
	}
	return b
}

// DecodeConcatRow decodes a row of ranges.
func DecodeConcatRow(b []byte) ([]ConcatRange, error) {
	d := Dec{B: b}
	d.Version(concatVersion)
	n := d.Count(18) // smallest size of one range in bytes
	if d.Err == nil && (n == 0 || n > ConcatRow) {
		d.fail(ErrConcatRow)
	}
	out := make([]ConcatRange, 0, n)
	for range n {
		out = append(out, ConcatRange{moraine.InodeID(d.Fixed64()), moraine.Generation(d.Fixed64()), int64(d.Uvarint()), int64(d.Uvarint())})
	}
	return out, d.End("ranges of a concatenation")
}

var ErrConcatRow = errors.New("a row holds 1 to 256 ranges")

// A concatenation fills a file without a name with ranges of other files and names it with the last
// range. A small one is a single command (Concat). A larger one is a job that the leader runs in
// pieces. The job takes the file from its session, so that nobody can see or change it until the
// last piece names it. A piece lays the next tables of the next ranges and records its progress in
// the job's cursor, so that a repeated piece continues from there. Rows of the job have the ranges
// and are deleted as they are consumed.
//
// A range is taken from its source at its turn. If the source changes between two pieces of one
// range, the job fails, because the result would mix both versions. A failed job leaves only its
// reason.

// ConcatRow is the number of ranges in one row of the job.
const ConcatRow = 256
