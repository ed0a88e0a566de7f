// Package agentproto is the protocol between a trainer and the agent of its node, over a unix
// socket. docs/formats/agent.md describes it for programs in other languages.
//
// A message is a frame: its length in 4 bytes, little-endian, then a JSON object. A request has
// one key, the operation; so has its reply, or the key "error". A connection carries one request
// at a time. File descriptors come with the first byte of a reply's frame (SCM_RIGHTS).
//
// One path through it: a trainer sends Hello and Open -> Begin brings the descriptor of a slot,
// shared memory of the agent -> the trainer copies its tensors there -> Seal says where they are.
package agentproto

import "github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"

const (
	// Version is the version of the protocol, in Hello.
	Version = 1
	// MaxFrame bounds a frame, in bytes: a Seal of some 50,000 tensors.
	MaxFrame = 16 << 20
	// DefaultSocket is where an agent listens, and where a trainer looks for it.
	DefaultSocket = "/run/moraine/agent.sock"
)

// Request is a message to the agent. Exactly one field is set.
type Request struct {
	Hello  *Hello  `json:"hello,omitempty"`
	Open   *Open   `json:"open,omitempty"`
	Begin  *Begin  `json:"begin,omitempty"`
	Seal   *Seal   `json:"seal,omitempty"`
	Abort  *Abort  `json:"abort,omitempty"`
	Wait   *Wait   `json:"wait,omitempty"`
	Read   *Read   `json:"read,omitempty"`
	Push   *Push   `json:"push,omitempty"`
	Status *Status `json:"status,omitempty"`

	Progress *Progress `json:"progress,omitempty"`

	Resolve *Resolve `json:"resolve,omitempty"`
	Tensors *Tensors `json:"tensors,omitempty"`
	Fetch   *Fetch   `json:"fetch,omitempty"`

	Stat      *fileproto.Stat      `json:"stat,omitempty"`
	List      *fileproto.List      `json:"list,omitempty"`
	FetchFile *fileproto.FetchFile `json:"fetch_file,omitempty"`
	Create    *fileproto.Create    `json:"create,omitempty"`
	Append    *fileproto.Append    `json:"append,omitempty"`
	Commit    *fileproto.Commit    `json:"commit,omitempty"`
	Mkdir     *fileproto.Mkdir     `json:"mkdir,omitempty"`
	Remove    *fileproto.Remove    `json:"remove,omitempty"`
	Rename    *fileproto.Rename    `json:"rename,omitempty"`
	Clone     *fileproto.Clone     `json:"clone,omitempty"`
}

// Reply is a message from the agent: an error, or the field of the request's name.
type Reply struct {
	Error  *Error       `json:"error,omitempty"`
	Hello  *HelloReply  `json:"hello,omitempty"`
	Open   *OpenReply   `json:"open,omitempty"`
	Begin  *BeginReply  `json:"begin,omitempty"`
	Seal   *SealReply   `json:"seal,omitempty"`
	Abort  *AbortReply  `json:"abort,omitempty"`
	Wait   *WaitReply   `json:"wait,omitempty"`
	Read   *ReadReply   `json:"read,omitempty"`
	Push   *PushReply   `json:"push,omitempty"`
	Status *StatusReply `json:"status,omitempty"`

	Progress *ProgressReply `json:"progress,omitempty"`

	Resolve *ResolveReply `json:"resolve,omitempty"`
	Tensors *TensorsReply `json:"tensors,omitempty"`
	Fetch   *FetchReply   `json:"fetch,omitempty"`

	Stat      *fileproto.Entry          `json:"stat,omitempty"`
	List      *fileproto.ListReply      `json:"list,omitempty"`
	FetchFile *fileproto.FetchFileReply `json:"fetch_file,omitempty"`
	Create    *fileproto.CreateReply    `json:"create,omitempty"`
	Append    *fileproto.AppendReply    `json:"append,omitempty"`
	Commit    *fileproto.Entry          `json:"commit,omitempty"`
	Mkdir     *fileproto.Entry          `json:"mkdir,omitempty"`
	Remove    *fileproto.RemoveReply    `json:"remove,omitempty"`
	Rename    *fileproto.RenameReply    `json:"rename,omitempty"`
	Clone     *fileproto.Entry          `json:"clone,omitempty"`
}

// Error is why a request failed. Kind is the text of a moraine.Kind.
type Error struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Hello is the first request of a connection.
type Hello struct {
	Version int `json:"version"`
}

// HelloReply names the agent.
type HelloReply struct {
	Version int `json:"version"`
	// Memory is the limit of the node's arenas, Used what slots have taken of it, in bytes.
	Memory int64 `json:"memory"`
	Used   int64 `json:"used"`
}

// Open joins or makes the attempt of a launch, as one rank. A connection opens one run.
type Open struct {
	// Run is the path of the run's directory.
	Run      string `json:"run"`
	Rank     uint32 `json:"rank"`
	World    uint32 `json:"world"`
	Launch   string `json:"launch"`
	Job      string `json:"job,omitempty"`
	Restart  uint64 `json:"restart,omitempty"`
	Takeover bool   `json:"takeover,omitempty"`
	// ReadOnly joins no attempt: it is for Resolve.
	ReadOnly bool `json:"read_only,omitempty"`
	// Bytes, if not 0, is what the slots of the rank's parts will have to hold: the agent makes them
	// before it answers, so that the first save is as fast as the next.
	Bytes int64 `json:"bytes,omitempty"`
}

// OpenReply names the run and the attempt.
type OpenReply struct {
	RunID   uint64 `json:"run_id"`
	Attempt uint32 `json:"attempt"`
}

// Begin starts the rank's part of a step in a slot of at least Bytes bytes.
type Begin struct {
	Step  uint64 `json:"step"`
	Bytes int64  `json:"bytes"`
	// Reserve is how many bytes of tensors and blobs the part will have at most. The service reserves
	// them, and begin fails if they do not fit. 0: unknown.
	Reserve int64 `json:"reserve,omitempty"`
	// Level is where the service has the part when it accepts it: memory, or nvme. Empty: nvme, and
	// memory if the step stays there by the policy of the run.
	Level string `json:"level,omitempty"`
	// SealTimeoutMillis aborts the step if no rank has sealed its part for this long. 0: 10 min. A week at most.
	SealTimeoutMillis int64 `json:"seal_timeout_ms,omitempty"`
	// NoWait fails with Busy where the slots of earlier saves are still being written.
	NoWait bool `json:"no_wait,omitempty"`
	// Supersede aborts older steps of the rank for all ranks once this part is sealed, if the agent
	// has not begun to write them.
	Supersede bool `json:"supersede,omitempty"`
}

// BeginReply comes with the descriptor of the slot, to be mapped shared from its start.
type BeginReply struct {
	// Slot names the memory: the same name is the same memory as at an earlier Begin.
	Slot string `json:"slot"`
	// Bytes is the length of the slot.
	Bytes int64 `json:"bytes"`
	// Failed are the earlier saves of this rank and launch that have failed since the last Begin.
	Failed []Failure `json:"failed,omitempty"`
}

// Failure is a sealed part whose step will never be committed.
type Failure struct {
	Step  uint64 `json:"step"`
	Error Error  `json:"error"`
}

// Err returns the failure as a *moraine.Error of its kind.
func (f *Failure) Err() error { return (&Reply{Error: &f.Error}).Err() }

// Seal completes the part. From its reply on the part survives the death of the trainer.
type Seal struct {
	Step    uint64   `json:"step"`
	Tensors []Tensor `json:"tensors"`
	Blobs   []Blob   `json:"blobs,omitempty"`
	// SumsAt, if not 0, is where the slot holds the CRC32C of each 4 KiB block, 4 bytes each and
	// little-endian: of the tensors in order, then of the blobs. Without it the agent computes
	// them, and cannot see damage from before.
	SumsAt int64 `json:"sums_at,omitempty"`
}

// Tensor is one slice in the slot. See ckpt.Tensor.
type Tensor struct {
	Name   string  `json:"name"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Global []int64 `json:"global,omitempty"`
	Offset []int64 `json:"offset,omitempty"`
	// At is where its bytes begin in the slot, Bytes how many they are.
	At    int64 `json:"at"`
	Bytes int64 `json:"bytes"`
}

// Blob is data that is no tensor, in the slot.
type Blob struct {
	Name  string `json:"name"`
	At    int64  `json:"at"`
	Bytes int64  `json:"bytes"`
}

// SealReply says that the agent has the part: it is at level local.
type SealReply struct{}

// Abort ends the step of the unsealed part for all ranks.
type Abort struct {
	Step   uint64 `json:"step"`
	Reason string `json:"reason"`
}

// AbortReply says that the part is gone.
type AbortReply struct{}

// Wait waits until a sealed part, or its step, has reached a level. Any connection may wait.
type Wait struct {
	Run     string `json:"run"`
	Rank    uint32 `json:"rank"`
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
	// Level is local, part (the rank's part is written to the cluster), memory, nvme or object.
	Level string `json:"level"`
	// TimeoutMillis bounds the wait. 0: no bound.
	TimeoutMillis int64 `json:"timeout_ms,omitempty"`
}

// WaitReply describes the step.
type WaitReply struct {
	Level string `json:"level"`
	// Path of a committed step, below the run's directory.
	Path  string `json:"path,omitempty"`
	Bytes uint64 `json:"bytes,omitempty"`
}

// Read asks for a sealed part of any rank that the node has in memory, to restore from it.
type Read struct {
	Run     string `json:"run"`
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
	Rank    uint32 `json:"rank"`
}

// ReadReply comes with the descriptor of the slot, which can only be read. The bytes do not change
// before the connection ends: unmap the slot first. Seal says where they are.
type ReadReply struct {
	Bytes int64 `json:"bytes"`
	Seal  Seal  `json:"seal"`
}
