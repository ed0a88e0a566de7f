package record

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// ConcatJob is the cursor of a concatenation. The file is the job's target.
type ConcatJob struct {
	Parent  moraine.InodeID // where the file is to appear
	Name    string
	Replace bool
	Expect  *wire.Expect    // what must have the name then; nil: anything
	Consume moraine.InodeID // directory that goes then; 0: none
	Mtime   int64
	// Who asked: what the session may reach, and its files without a name.
	Root    moraine.InodeID
	Session moraine.SessionID

	Ranges uint64 // in all
	Next   uint64 // the first that is not consumed
	// Of that one: how many bytes are taken, and what of.
	Taken      int64
	Generation moraine.Generation
}

const concatVersion = 1

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

// ConcatRange is a range of a source; length 0: to its end.
type ConcatRange struct {
	Inode          moraine.InodeID
	Generation     moraine.Generation // 0: any
	Offset, Length int64
}

func EncodeConcatRow(ranges []ConcatRange) []byte {
	b := PutUvarint(append(make([]byte, 0, 3+24*len(ranges)), concatVersion), uint64(len(ranges)))
	for _, r := range ranges {
		b = PutFixed64(PutFixed64(b, uint64(r.Inode)), uint64(r.Generation))
		b = PutUvarint(PutUvarint(b, uint64(r.Offset)), uint64(r.Length))
	}
	return b
}

func DecodeConcatRow(b []byte) ([]ConcatRange, error) {
	d := Dec{B: b}
	d.Version(concatVersion)
	n := d.Count(18) // the least bytes of one
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

// A concatenation gives a file without a name the ranges of other files, and its
// name with the last of them. What one command can do it does (Concat); else it
// is a job, whose pieces the leader runs. The job takes the file from its session:
// nobody sees it, and nobody can change it, until the last piece names it. A piece
// lays the next tables of the next ranges and says in the job's cursor how far it
// came, so that a piece that is run again goes on from there. The ranges are in
// rows of the job, which go as they are consumed.
//
// A range is taken of its source as that is at its turn, and a source that
// changes between two pieces of one range fails the job: half of each would be
// neither. What fails leaves nothing but the reason.

// ConcatRow is how many ranges a row of the job holds.
const ConcatRow = 256
