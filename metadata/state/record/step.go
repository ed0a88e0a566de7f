package record

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	StepOpen      = wire.StepState_STEP_STATE_OPEN
	StepSealed    = wire.StepState_STEP_STATE_SEALED
	StepCommitted = wire.StepState_STEP_STATE_COMMITTED
	StepAborted   = wire.StepState_STEP_STATE_ABORTED
	StepDeleted   = wire.StepState_STEP_STATE_DELETED

	StepHealthy     = wire.StepMark_STEP_MARK_HEALTHY
	StepQuarantined = wire.StepMark_STEP_MARK_QUARANTINED

	// stepLost is the state shown for a committed step with lost bytes. Its record stays in the
	// state committed: it is as immutable as others, and its bytes may return.
	stepLost = wire.StepState_STEP_STATE_LOST
)

// Encode appends the fields of the ID to a value.
func (s StepID) Encode(b []byte) []byte {
	c := codec{Dec: Dec{B: b}}
	s.fields(&c)
	return c.B
}

// Decode reads the fields of the ID from a value.
func (s *StepID) Decode(d *Dec) {
	c := codec{Dec: *d, reading: true}
	s.fields(&c)
	*d = c.Dec
}

// fields is the ID as part of a record.
func (s *StepID) fields(c *codec) {
	fixed64(c, &s.Run)
	uvarint(c, &s.Attempt)
	uvarint(c, &s.Step)
}

// ToWire returns the wire form.
func (s StepID) ToWire() *wire.StepKey {
	return &wire.StepKey{Run: uint64(s.Run), Attempt: s.Attempt, Step: s.Step}
}

// String returns the checkpoint's path below its run's directory.
func (s StepID) String() string { return s.AttemptDir() + "/" + s.Name() }

// AttemptDir returns the name of the attempt's directory.
func (s StepID) AttemptDir() string { return "attempt-" + Utoa(uint64(s.Attempt)) }

// Name returns the name of the step's directory.
func (s StepID) Name() string { return "step-" + Utoa(s.Step) }

// Step is the record of a checkpoint. Its parts have rows of their own.
type Step struct {
	Id       StepID // in the key
	State    wire.StepState
	World    uint32
	Sealed   uint32
	Dir      moraine.InodeID
	Timeout  uint64 // milliseconds of cluster time
	LastSeal uint64 // cluster time of the last seal, or of the first BeginStep
	Reason   string
	Missing  []uint32 // of an aborted step
	Bytes    uint64
	// Files of the parts and the index; those of them below nvme, and those that no object has.
	Files, BelowNVMe, BelowObject uint64
	// Level is that of the least safe file of a committed step. Reached has when the step first had
	// each level from memory on, wall clock; 0: never.
	Level    moraine.Level
	Reached  [levels]int64
	At       int64 // time of the commit, wall clock
	Degraded uint64
	Protects uint32
	Job      moraine.JobID
	Digest   []byte
	Index    moraine.InodeID // of a committed step; 0 if it has none
	Mark     wire.StepMark   // zero: nobody said anything
	Note     string          // of the mark
	Tags     []string
	Pinned   bool
	// The jobs that took the step to the bucket, and from the devices, as the policy says; 0: none yet.
	// Evict is the greatest number once that job is done.
	Flush, Evict moraine.JobID
	Loss         StepLoss // a lost place of a committed step
	// Of an adopted step: what wrote the files, and the directory with them. Adopter is the job that
	// clones them, until it ends.
	Format  wire.CheckpointFormat
	From    moraine.InodeID
	Adopter moraine.JobID
	// StaysInMemory says that the policy, when the step began, did not bring it to the devices, and
	// nobody has asked for that since. Chunkservers then put off the writes of its chunks.
	StaysInMemory bool
}

const (
	StepVersion = 1
	// levels is the number of levels that a committed step may have.
	levels = moraine.Object - moraine.Memory + 1
	// stepHasLoss is a bit in the state byte of a record with a loss at its end.
	stepHasLoss = 0x80
)

// Encode returns the stored value.
func (s *Step) Encode() []byte { return s.fields(encoder(128 + len(s.Reason) + 2*len(s.Missing))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (s *Step) Decode(b []byte) error { return s.fields(decoder(b)).End("step") }

func (s *Step) fields(c *codec) *codec {
	c.version(StepVersion)
	state := byte(s.State)
	if s.Lost() {
		state |= stepHasLoss
	}
	oneByte(c, &state)
	if c.reading {
		s.State, s.Loss = wire.StepState(state&^stepHasLoss), StepLoss{}
	}
	uvarint(c, &s.World)
	uvarint(c, &s.Sealed)
	fixed64(c, &s.Dir)
	uvarint(c, &s.Timeout)
	uvarint(c, &s.LastSeal)
	c.string(&s.Reason)
	missing := list(c, &s.Missing, 1)
	for i := range missing {
		uvarint(c, &missing[i])
	}
	uvarint(c, &s.Bytes)
	uvarint(c, &s.Files)
	uvarint(c, &s.BelowNVMe)
	uvarint(c, &s.BelowObject)
	oneByte(c, &s.Level)
	for i := range s.Reached {
		fixed64(c, &s.Reached[i])
	}
	fixed64(c, &s.At)
	uvarint(c, &s.Degraded)
	uvarint(c, &s.Protects)
	fixed64(c, &s.Job)
	c.bytes(&s.Digest)
	fixed64(c, &s.Index)
	oneByte(c, &s.Mark)
	c.string(&s.Note)
	tags := list(c, &s.Tags, 1)
	for i := range tags {
		c.string(&tags[i])
	}
	c.bool(&s.Pinned)
	fixed64(c, &s.Flush)
	fixed64(c, &s.Evict)
	oneByte(c, &s.Format)
	fixed64(c, &s.From)
	fixed64(c, &s.Adopter)
	c.bool(&s.StaysInMemory)
	if state&stepHasLoss != 0 {
		fixed64(c, &s.Loss.Inode)
		if uvarint(c, &s.Loss.Offset); s.Loss.Inode == 0 {
			c.fail(errNoLoss)
		}
	}
	return c
}

// ToWire returns the wire form.
func (s *Step) ToWire() *wire.Step {
	w := &wire.Step{
		Key: s.Id.ToWire(), State: s.State, World: s.World, Sealed: s.Sealed, Dir: uint64(s.Dir), Missing: s.Missing,
		Reason: s.Reason, Bytes: s.Bytes, Level: uint32(s.Level), CommittedAt: s.At, Degraded: s.Degraded,
		Protects: s.Protects, Job: uint64(s.Job), Digest: s.Digest,
		Mark: s.Mark, Note: s.Note, Tags: s.Tags, Pinned: s.Pinned,
		Files: s.Files, BelowNvme: s.BelowNVMe, BelowObject: s.BelowObject,
		StaysInMemory: s.StaysInMemory,
	}
	if s.Adopted() {
		w.Adopted = &wire.Adopted{Format: s.Format, Dir: uint64(s.From)}
	}
	if s.State == StepCommitted {
		w.Path = s.Id.String()
	}
	for i, at := range s.Reached {
		if at != 0 {
			w.Reached = append(w.Reached, &wire.LevelTime{Level: uint32(moraine.Memory) + uint32(i), At: at})
		}
	}
	if s.Lost() {
		w.State = stepLost
		w.Loss = &wire.StepLoss{Inode: uint64(s.Loss.Inode), Offset: uint64(s.Loss.Offset)}
	}
	return w
}

// Adopted reports whether the step has clones of files that a framework wrote.
func (s *Step) Adopted() bool { return s.Format != 0 }

// AddFile counts a file of the step that has a level.
func (s *Step) AddFile(level moraine.Level) {
	s.Files++
	s.BelowNVMe += below(level, moraine.NVMe)
	s.BelowObject += below(level, moraine.Object)
}

// MoveFile records that a file of the step has another level.
func (s *Step) MoveFile(was, now moraine.Level) {
	s.BelowNVMe += below(now, moraine.NVMe) - below(was, moraine.NVMe)
	s.BelowObject += below(now, moraine.Object) - below(was, moraine.Object)
}

func below(level, than moraine.Level) uint64 {
	if level < than {
		return 1
	}
	return 0
}

// FilesLevel returns the level that all files of the step have.
func (s *Step) FilesLevel() moraine.Level {
	switch {
	case s.BelowNVMe > 0:
		return moraine.Memory
	case s.BelowObject > 0:
		return moraine.NVMe
	}
	return moraine.Object
}

// SetLevel gives a committed step a level, and notes when it first had it and the ones below.
func (s *Step) SetLevel(level moraine.Level, now int64) {
	s.Level = level
	for l := moraine.Memory; l <= level; l++ {
		if at := &s.Reached[l-moraine.Memory]; *at == 0 {
			*at = now
		}
	}
}

// Silent reports whether an open step has waited too long for its next seal.
func (s *Step) Silent(now uint64) bool { return now-s.LastSeal >= s.Timeout }

// SilenceReason says why a silent step is aborted.
func (s *Step) SilenceReason() string {
	return "no rank sealed for " + Utoa(s.Timeout/1000) + " s; " + Utoa(uint64(s.Sealed)) + " of " + Utoa(uint64(s.World)) + " had"
}

// BlockRanks is the number of ranks in one block of a step. Blocks show that a step is complete,
// and which ranks are missing, without a read of each rank's row.
const BlockRanks = 1024

// Block counts the sealed ranks among BlockRanks consecutive ones.
type Block struct {
	Sealed []byte // one bit per rank
	Digest []byte // digest of the block, once all its ranks have sealed
}

// Encode returns the stored value.
func (b *Block) Encode() []byte { return b.fields(encoder(5 + len(b.Sealed) + len(b.Digest))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (b *Block) Decode(value []byte) error { return b.fields(decoder(value)).End("block of a step") }

func (b *Block) fields(c *codec) *codec {
	c.version(partVersion)
	c.bytes(&b.Sealed)
	c.bytes(&b.Digest)
	return c
}

// Blocks returns the number of blocks of the step.
func (s *Step) Blocks() uint32 { return (s.World + BlockRanks - 1) / BlockRanks }

// BlockLen returns the number of ranks in block n.
func (s *Step) BlockLen(n uint32) uint32 { return min(BlockRanks, s.World-n*BlockRanks) }

// StepLoss is a lost place in a file of a checkpoint; zero means that nothing is lost.
type StepLoss struct {
	Inode  moraine.InodeID
	Offset int64
}

var errNoLoss = errors.New("a lost step names no file")

// Lost reports whether a committed step has lost bytes.
func (s *Step) Lost() bool { return s.Loss != StepLoss{} }

const StepLeaseVersion = 1

// EncodeStepLease returns the stored value of a read lease that a session took a number of times.
func EncodeStepLease(times uint64) []byte { return EncodeNumber(StepLeaseVersion, times) }

// DecodeStepLease decodes how often a session took a read lease.
func DecodeStepLease(b []byte) (times uint64, err error) {
	return DecodeNumber[uint64](StepLeaseVersion, b, "lease of a step")
}
