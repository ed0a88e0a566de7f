package ckpt

import (
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// StepInfo is the service's record of a step.
type StepInfo struct {
	Run     moraine.InodeID
	Attempt uint32
	Step    uint64
	State   StepState
	// Path of a committed step, below the run's directory.
	Path string
	// Dir is the inode of the step's directory.
	Dir moraine.InodeID
	// Level is that of the least safe file of a committed step. Reached is when the step first had
	// each level.
	Level   moraine.Level
	Reached map[moraine.Level]time.Time
	// Files of the parts and the index; those of them below nvme, and those that are not in the
	// bucket.
	Files, BelowNVMe, BelowObject uint64
	// World ranks take part; Sealed of them have sealed; Missing lists those that have not (at
	// most 1,000).
	World, Sealed uint32
	Missing       []uint32
	// Reason of an abort.
	Reason string
	Bytes  uint64
	// Protects is how many hosts could be lost at the commit, the minimum over all stripes.
	// Degraded counts the stripes with less protection than their scheme promises.
	Protects    uint32
	Degraded    uint64
	CommittedAt time.Time
	// Digest of all parts, by rank: SHA-256 of their digests.
	Digest []byte
	// Mark, Note, Tags and Pinned are what ChangeStep changes.
	Mark   Mark
	Note   string
	Tags   []string
	Pinned bool
	// StaysInMemory says that the policy of the run does not bring the step to the devices, and that
	// nobody has asked for that. Wait for nvme or object asks, and so does a pin.
	StaysInMemory bool
}

// StepState is the state of a step.
type StepState string

// The states of steps.
const (
	StepOpen      StepState = "open"      // ranks write their parts
	StepSealed    StepState = "sealed"    // all parts are complete, and a mover checks them
	StepCommitted StepState = "committed" // it never changes
	StepAborted   StepState = "aborted"   // it can never be committed
	StepDeleted   StepState = "deleted"
	StepLost      StepState = "lost" // committed, but some of its bytes are lost
)

var stepStates = map[wire.StepState]StepState{
	wire.StepState_STEP_STATE_OPEN: StepOpen, wire.StepState_STEP_STATE_SEALED: StepSealed,
	wire.StepState_STEP_STATE_COMMITTED: StepCommitted, wire.StepState_STEP_STATE_ABORTED: StepAborted,
	wire.StepState_STEP_STATE_DELETED: StepDeleted, wire.StepState_STEP_STATE_LOST: StepLost,
}

func stepInfo(s *wire.Step) StepInfo {
	reached := make(map[moraine.Level]time.Time, len(s.GetReached()))
	for _, r := range s.GetReached() {
		reached[moraine.Level(r.GetLevel())] = time.Unix(0, r.GetAt())
	}
	return StepInfo{
		Reached: reached, Files: s.GetFiles(), BelowNVMe: s.GetBelowNvme(), BelowObject: s.GetBelowObject(),
		Run: moraine.InodeID(s.GetKey().GetRun()), Attempt: s.GetKey().GetAttempt(), Step: s.GetKey().GetStep(),
		State: stepStates[s.GetState()], Path: s.GetPath(), Dir: moraine.InodeID(s.GetDir()), Level: moraine.Level(s.GetLevel()),
		World: s.GetWorld(), Sealed: s.GetSealed(), Missing: s.GetMissing(), Reason: s.GetReason(),
		Bytes: s.GetBytes(), Protects: s.GetProtects(), Degraded: s.GetDegraded(),
		CommittedAt: time.Unix(0, s.GetCommittedAt()), Digest: s.GetDigest(),
		Mark: marks[s.GetMark()], Note: s.GetNote(), Tags: s.GetTags(), Pinned: s.GetPinned(),
		StaysInMemory: s.GetStaysInMemory(),
	}
}

func (s *StepInfo) ref() string {
	return fmt.Sprintf("step %d (attempt %d)", s.Step, s.Attempt)
}

// Lacks says what the step waits for on its way to the bucket.
func (s *StepInfo) Lacks() string {
	switch {
	case s.State != StepCommitted:
		return fmt.Sprintf("%d of %d ranks have sealed", s.Sealed, s.World)
	case s.StaysInMemory:
		return fmt.Sprintf("it is committed at %s, and the policy of the run leaves it there", s.Level)
	case s.BelowNVMe > 0:
		return fmt.Sprintf("it is committed at %s: %d of %d files are not on their devices yet", s.Level, s.BelowNVMe, s.Files)
	}
	return fmt.Sprintf("it is committed at %s: %d of %d files are not in the bucket yet", s.Level, s.BelowObject, s.Files)
}
