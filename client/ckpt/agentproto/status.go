package agentproto

// What the agent tells of all its parts.

// Push waits until every part that trainers of the user have sealed is in a committed step, and the newest
// step of each rank at a level. It is for a node that is about to end. It fails with NotFound if the agent has neither a
// part of the run nor a trainer that has it open.
type Push struct {
	// Run, if not empty, is the path of the run whose parts it waits for.
	Run string `json:"run,omitempty"`
	// Level is nvme or object. Empty: nvme.
	Level string `json:"level,omitempty"`
	// DeadlineMillis bounds the wait. 0: no bound.
	DeadlineMillis int64 `json:"deadline_ms"`
}

// PushReply lists the parts that are in no committed step at the deadline, those that have failed meanwhile if their
// rank has saved nothing newer, and the newest part of a rank if its step is not at the level then.
type PushReply struct {
	Parts []Part `json:"parts"`
}

// Status asks what the agent has.
type Status struct{}

// StatusReply lists the node's parts.
type StatusReply struct {
	Memory int64  `json:"memory"`
	Used   int64  `json:"used"`
	Parts  []Part `json:"parts"`
	// Runs are the figures of each run since the agent has started.
	Runs []RunStatus `json:"runs,omitempty"`
}

// RunStatus has what the agent has counted of a run's parts on this node. A run beyond 64 takes the place of the one
// that has been closed longest. If all of them are open, it counts as "other".
type RunStatus struct {
	Run string `json:"run"`
	// Saves counts the parts that were sealed, and Bytes those of their tensors and blobs.
	Saves uint64 `json:"saves"`
	Bytes int64  `json:"bytes"`
	// StallSeconds is the time from begin to seal, over all Saves.
	StallSeconds float64 `json:"stall_seconds"`
	// Failed counts the parts whose step will never be committed.
	Failed uint64 `json:"failed"`
	// Restores counts the steps that trainers have opened and fetched from, and RestoreSeconds is the time
	// from resolve to the end of the last fetch, over all of them.
	Restores       uint64  `json:"restores"`
	RestoreSeconds float64 `json:"restore_seconds"`
	// Levels are the levels memory, nvme and object that have a good step. Empty if no trainer has the run
	// open here, and for "other".
	Levels []LevelStatus `json:"levels,omitempty"`
}

// LevelStatus is the newest good step of a run at a level, and what a crash of the node now would lose if
// only that level and safer ones survived it.
type LevelStatus struct {
	Level   string `json:"level"`
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
	// Committed is when the step was committed, in nanoseconds since the epoch.
	Committed int64 `json:"committed_ns"`
	// LostSteps counts from the step to the newest that a trainer of the node has begun to save, and
	// LostSeconds from its commit to now.
	LostSteps   uint64  `json:"lost_steps"`
	LostSeconds float64 `json:"lost_seconds"`
}

// Part is one rank's part of a step in a slot of the node.
type Part struct {
	Run     string `json:"run"`
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
	Rank    uint32 `json:"rank"`
	World   uint32 `json:"world"`
	Bytes   int64  `json:"bytes"`
	// State is filling, local, committed or failed.
	State string `json:"state"`
	// Written is how many bytes of the part's files the cluster has been given.
	Written int64 `json:"written,omitempty"`
	// Error says why a part failed.
	Error string `json:"error,omitempty"`
}

// Progress asks how much of a part is written. Any connection may.
type Progress struct {
	Run     string `json:"run"`
	Rank    uint32 `json:"rank"`
	Attempt uint32 `json:"attempt"`
	Step    uint64 `json:"step"`
}

// ProgressReply counts bytes of the part's files, headers included.
type ProgressReply struct {
	// State is that of the part.
	State   string `json:"state"`
	Written int64  `json:"written"`
	// Bytes is how many there are, as far as known: 0 before the agent writes the part.
	Bytes int64 `json:"bytes"`
}

// Written is the level of Wait at which the part is in the cluster, and its step perhaps open.
const Written = "part"

// States of a part.
const (
	Filling   = "filling"   // the trainer copies
	Local     = "local"     // sealed: the agent writes it to the cluster
	Committed = "committed" // its step is committed
	Failed    = "failed"    // its step never will be
)
