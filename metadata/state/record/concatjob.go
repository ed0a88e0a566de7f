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
func (j *ConcatJob) Encode() []byte { return j.fields(encoder(96 + len(j.Name))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (j *ConcatJob) Decode(b []byte) error { return j.fields(decoder(b)).End("concatenation") }

func (j *ConcatJob) fields(c *codec) *codec {
	c.version(concatVersion)
	fixed64(c, &j.Parent)
	c.string(&j.Name)
	c.bool(&j.Replace)
	fixed64(c, &j.Consume)
	fixed64(c, &j.Mtime)
	fixed64(c, &j.Root)
	fixed64(c, &j.Session)
	uvarint(c, &j.Ranges)
	uvarint(c, &j.Next)
	uvarint(c, &j.Taken)
	fixed64(c, &j.Generation)
	conditional := j.Expect != nil
	if c.bool(&conditional); !conditional {
		return c
	}
	if c.reading {
		j.Expect = &wire.Expect{}
	}
	fixed64(c, &j.Expect.Inode)
	fixed64(c, &j.Expect.Generation)
	fixed64(c, &j.Expect.Ctime)
	return c
}

// ConcatRange is a range of a source; length 0 means up to its end.
type ConcatRange struct {
	Inode          moraine.InodeID
	Generation     moraine.Generation // 0: any generation
	Offset, Length int64
}

// EncodeConcatRow returns the stored value of a row of ranges.
func EncodeConcatRow(ranges []ConcatRange) []byte {
	return concatRowFields(encoder(3+24*len(ranges)), &ranges).B
}

// DecodeConcatRow decodes a row of ranges.
func DecodeConcatRow(b []byte) (ranges []ConcatRange, err error) {
	err = concatRowFields(decoder(b), &ranges).End("ranges of a concatenation")
	return ranges, err
}

func concatRowFields(c *codec, ranges *[]ConcatRange) *codec {
	c.version(concatVersion)
	rows := list(c, ranges, 18) // smallest size of one range in bytes
	if len(rows) == 0 || len(rows) > ConcatRow {
		c.fail(ErrConcatRow)
	}
	for i := range rows {
		fixed64(c, &rows[i].Inode)
		fixed64(c, &rows[i].Generation)
		uvarint(c, &rows[i].Offset)
		uvarint(c, &rows[i].Length)
	}
	return c
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
