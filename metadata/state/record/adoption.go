package record

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Adopting a directory is a job that the leader runs in pieces. It goes over the files below the
// directory three times. AdoptLook counts them. AdoptCopy clones them into the directory of a step,
// where nobody sees them. AdoptCheck compares what is there now with what was cloned: if nothing
// changed, the step has the files as they were at one moment. The step is then sealed, and its job
// checks that it is complete. AdoptJudge waits for that.

// AdoptPhase says what an ADOPT job does next.
type AdoptPhase uint8

// The phases of an ADOPT job.
const (
	AdoptLook AdoptPhase = iota
	AdoptCopy
	AdoptCheck
	AdoptJudge
)

// Adoption is the cursor of an ADOPT job. The step is that of the job.
type Adoption struct {
	Format wire.CheckpointFormat
	// Quiet: a policy made the job. It begins when the directory stays as it is, and tries again.
	Quiet bool
	// Again: the directory became complete once more since the job began.
	Again bool
	Phase AdoptPhase
	// Last is the path of the last file of this phase, below the directory. N counts the files up to
	// it, Files all of them.
	Last     string
	N, Files uint64
	// Sum is over the files of AdoptLook so far, Seen that of the last AdoptLook, and Refused that of
	// the files with which the step was refused; 0: none.
	Sum, Seen, Refused uint64
	// Clone is the file in progress of AdoptCopy.
	Clone FileClone
	// Part has the files of the part that AdoptCopy has not sealed.
	Part []PartFile
}

const adoptionVersion = 1

// Encode returns the stored value.
func (a *Adoption) Encode() []byte { return a.fields(encoder(64 + 64*len(a.Part))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (a *Adoption) Decode(b []byte) error { return a.fields(decoder(b)).End("adoption") }

func (a *Adoption) fields(c *codec) *codec {
	c.version(adoptionVersion)
	oneByte(c, &a.Format)
	c.bool(&a.Quiet)
	c.bool(&a.Again)
	oneByte(c, &a.Phase)
	c.string(&a.Last)
	uvarint(c, &a.N)
	uvarint(c, &a.Files)
	fixed64(c, &a.Sum)
	fixed64(c, &a.Seen)
	fixed64(c, &a.Refused)
	a.Clone.fields(c)
	partFiles(c, &a.Part)
	return c
}

// Begin starts a phase at the first file.
func (a *Adoption) Begin(p AdoptPhase) { a.Phase, a.Last, a.N, a.Sum = p, "", 0, 0 }

// Add adds a file to Sum.
func (a *Adoption) Add(path string, i *Inode) {
	b := binary.BigEndian.AppendUint64(nil, a.Sum)
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(path))), path...)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, uint64(i.Id)), uint64(i.Generation))
	sum := sha256.Sum256(b)
	a.Sum = max(binary.BigEndian.Uint64(sum[:]), 1)
}

// From names the file that a file of an adopted step is a clone of.
type From struct {
	Inode      moraine.InodeID
	Generation moraine.Generation
}
