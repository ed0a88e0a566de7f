package agentproto

// Resolve opens a committed step of the connection's run, and replaces the one opened before. It
// cannot be removed until the connection ends, or opens another. See ckpt.ResolveOptions.
type Resolve struct {
	// Step is the step if Exact is set; otherwise it is the latest one.
	Step  uint64 `json:"step,omitempty"`
	Exact bool   `json:"exact,omitempty"`
	// Fix makes all ranks of the attempt continue from the same step.
	Fix bool `json:"fix,omitempty"`
	// Level is the level that the step must have reached at least: memory, nvme or object. Empty: nvme.
	Level string `json:"level,omitempty"`
	// Tag, if not empty, is a tag that the step must have. With Healthy it must be marked healthy.
	Tag     string `json:"tag,omitempty"`
	Healthy bool   `json:"healthy,omitempty"`
	// Before, if set, is a step, and the latest one before it is opened. Not with Exact or Fix.
	Before *StepRef `json:"before,omitempty"`
	// Fallback opens the latest step whose index can be read, and says which it skipped. Without it, a
	// step that is damaged or lost is an error. Not with Exact or Fix.
	Fallback bool `json:"fallback,omitempty"`
}

// StepRef names a step of a run.
type StepRef struct {
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
}

// Skipped is a step that Fallback has skipped, and why.
type Skipped struct {
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
	Error   Error  `json:"error"`
}

// ResolveReply describes the step.
type ResolveReply struct {
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
	World   uint32 `json:"world"`
	Level   string `json:"level"`
	Path    string `json:"path"`
	Bytes   uint64 `json:"bytes"`
	// Blobs are the blobs of all ranks.
	Blobs []BlobInfo `json:"blobs,omitempty"`
	// Skipped are the steps that Fallback has skipped, the latest first.
	Skipped []Skipped `json:"skipped,omitempty"`
}

// BlobInfo is a blob of a step.
type BlobInfo struct {
	Rank  uint32 `json:"rank"`
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// Tensors lists the tensors of the opened step by name, one page at a time.
type Tensors struct {
	// After is the last name of the page before; empty for the first.
	After string `json:"after,omitempty"`
	// Limit bounds the page. 0: 1000.
	Limit int `json:"limit,omitempty"`
}

// TensorsReply is a page; an empty one is the end.
type TensorsReply struct {
	Tensors []TensorInfo `json:"tensors"`
}

// TensorInfo is a tensor of a step.
type TensorInfo struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
}

// Fetch reads slices and blobs of the opened step into a slot of Bytes bytes.
type Fetch struct {
	Bytes  int64       `json:"bytes"`
	Slices []Slice     `json:"slices,omitempty"`
	Blobs  []FetchBlob `json:"blobs,omitempty"`
	// Reuse says that the trainer has read the bytes of the last Fetch: the slot may be used again.
	Reuse bool `json:"reuse,omitempty"`
}

// Slice is a slice of a tensor, cut in any way, and its place in the slot.
type Slice struct {
	Name   string  `json:"name"`
	Offset []int64 `json:"offset"`
	Shape  []int64 `json:"shape"`
	At     int64   `json:"at"`
	Bytes  int64   `json:"bytes"`
}

// FetchBlob is a rank's blob, and its place in the slot; Bytes is its length.
type FetchBlob struct {
	Rank  uint32 `json:"rank"`
	Name  string `json:"name"`
	At    int64  `json:"at"`
	Bytes int64  `json:"bytes"`
}

// FetchReply comes with the descriptor of the slot. Nobody else has it: it may be written to, and
// its memory counts until the connection's next Fetch or Begin, or its end.
type FetchReply struct {
	// Slot names the memory: with Reuse, the same name is the same memory as before.
	Slot string `json:"slot"`
	// FromNode is how many bytes came from the memory of this node.
	FromNode int64 `json:"from_node"`
}
