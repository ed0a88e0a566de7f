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
	// stepLost is the state shown for a committed step with lost bytes. Its record stays in the
	// state committed: it is as immutable as others, and its bytes may return.
	stepLost = wire.StepState_STEP_STATE_LOST
)

// Encode appends the fields of the ID to a value.
func (s StepID) Encode(b []byte) []byte {
	b = PutFixed64(b, uint64(s.Run))
	b = PutUvarint(b, uint64(s.Attempt))
	return PutUvarint(b, s.Step)
}

// Decode reads the fields of the ID from a value.
func (s *StepID) Decode(d *Dec) {
	s.Run = moraine.RunID(d.Fixed64())
	s.Attempt = d.U32()
	s.Step = d.Uvarint()
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
	Level    moraine.Level
	At       int64 // time of the commit, wall clock
	Degraded uint64
	Protects uint32
	Job      moraine.JobID
	Digest   []byte
	Index    moraine.InodeID // of a committed step; 0 if it has none
	Loss     StepLoss        // a lost place of a committed step
}

const (
	StepVersion = 1
	// stepHasLoss is a bit in the state byte of a record with a loss at its end.
	stepHasLoss = 0x80
)

// Encode returns the stored value.
func (s *Step) Encode() []byte {
	b := make([]byte, 0, 128+len(s.Reason)+2*len(s.Missing))
	state := byte(s.State)
	if s.Lost() {
		state |= stepHasLoss
	}
	b = append(b, StepVersion, state)
	b = PutUvarint(b, uint64(s.World))
	b = PutUvarint(b, uint64(s.Sealed))
	b = PutFixed64(b, uint64(s.Dir))
	b = PutUvarint(b, s.Timeout)
	b = PutUvarint(b, s.LastSeal)
	b = PutString(b, s.Reason)
	b = PutUvarint(b, uint64(len(s.Missing)))
	for _, rank := range s.Missing {
		b = PutUvarint(b, uint64(rank))
	}
	b = PutUvarint(b, s.Bytes)
	b = append(b, byte(s.Level))
	b = PutFixed64(b, uint64(s.At))
	b = PutUvarint(b, s.Degraded)
	b = PutUvarint(b, uint64(s.Protects))
	b = PutFixed64(b, uint64(s.Job))
	b = PutBytes(b, s.Digest)
	b = PutFixed64(b, uint64(s.Index))
	if s.Lost() {
		b = PutUvarint(PutFixed64(b, uint64(s.Loss.Inode)), uint64(s.Loss.Offset))
	}
	return b
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (s *Step) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(StepVersion)
	state := d.Byte()
	s.State = wire.StepState(state &^ stepHasLoss)
	s.World = d.U32()
	s.Sealed = d.U32()
	s.Dir = moraine.InodeID(d.Fixed64())
	s.Timeout = d.Uvarint()
	s.LastSeal = d.Uvarint()
	s.Reason = d.string()
	for range d.Count(1) {
		s.Missing = append(s.Missing, d.U32())
	}
	s.Bytes = d.Uvarint()
	s.Level = moraine.Level(d.Byte())
	s.At = int64(d.Fixed64())
	s.Degraded = d.Uvarint()
	s.Protects = d.U32()
	s.Job = moraine.JobID(d.Fixed64())
	s.Digest = d.bytes()
	s.Index = moraine.InodeID(d.Fixed64())
	s.Loss = StepLoss{}
	if state&stepHasLoss != 0 {
		s.Loss = StepLoss{moraine.InodeID(d.Fixed64()), int64(d.Uvarint())}
		if s.Loss.Inode == 0 {
			d.fail(errNoLoss)
		}
	}
	return d.End("step")
}

// ToWire returns the wire form.
func (s *Step) ToWire() *wire.Step {
	w := &wire.Step{
		Key: s.Id.ToWire(), State: s.State, World: s.World, Sealed: s.Sealed, Dir: uint64(s.Dir), Missing: s.Missing,
		Reason: s.Reason, Bytes: s.Bytes, Level: uint32(s.Level), CommittedAt: s.At, Degraded: s.Degraded,
		Protects: s.Protects, Job: uint64(s.Job), Digest: s.Digest,
	}
	if s.State == StepCommitted {
		w.Path = s.Id.String()
	}
	if s.Lost() {
		w.State = stepLost
		w.Loss = &wire.StepLoss{Inode: uint64(s.Loss.Inode), Offset: uint64(s.Loss.Offset)}
	}
	return w
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
func (b *Block) Encode() []byte { return PutBytes(PutBytes([]byte{partVersion}, b.Sealed), b.Digest) }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (b *Block) Decode(value []byte) error {
	d := Dec{B: value}
	d.Version(partVersion)
	b.Sealed, b.Digest = d.bytes(), d.bytes()
	return d.End("block of a step")
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
func EncodeStepLease(times uint64) []byte { return PutUvarint([]byte{StepLeaseVersion}, times) }

// DecodeStepLease decodes how often a session took a read lease.
func DecodeStepLease(b []byte) (times uint64, err error) {
	d := Dec{B: b}
	d.Version(StepLeaseVersion)
	times = d.Uvarint()
	return times, d.End("lease of a step")
}
