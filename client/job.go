package client

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Job is a job of the cluster at one moment.
type Job struct {
	ID    moraine.JobID
	Kind  JobKind
	State JobState
	// Subject names for people what the job works on: a path, a device, a run and step.
	Subject string
	// Inode is the file or directory of a job for one; 0 for others.
	Inode moraine.InodeID
	// Moves is the kind of the jobs that a JobMoveTree queues.
	Moves JobKind
	// Done of Total units of work are done. Total is 0 until it is known.
	Done, Total uint64
	// Holder is the host whose mover has the job, and Attempts how often a mover took it.
	Holder   string
	Attempts uint32
	// Error is why the job failed, or why its last attempt failed. Failed is the kind of that
	// error for a concat, an adoption, a flush, a stage and an eviction.
	Error  string
	Failed moraine.Kind
	// Created is when the job was made, and NotBefore until when a retry waits. Both are cluster
	// time in milliseconds.
	Created, NotBefore uint64

	generation moraine.Generation // that a concat gave the inode
}

// JobKind is the kind of a job.
type JobKind string

// The kinds of jobs. Jobs.Queue makes those of the first three.
const (
	JobFlush        JobKind = "flush" // a file to the bucket
	JobStage        JobKind = "stage" // an evicted file back to stripes
	JobEvict        JobKind = "evict" // drop the stripes of a clean file
	JobMoveTree     JobKind = "move-tree"
	JobDeleteObject JobKind = "delete-object"
	JobRepair       JobKind = "repair"
	JobRebalance    JobKind = "rebalance"
	JobRewrite      JobKind = "rewrite"
	JobScanDevice   JobKind = "scan-device"
	JobCommitStep   JobKind = "commit-step"
	JobRemoveTree   JobKind = "remove-tree"
	JobDropTables   JobKind = "drop-tables"
	JobRecount      JobKind = "recount"
	JobCloneTree    JobKind = "clone-tree"
	JobConcat       JobKind = "concat"
	JobAdopt        JobKind = "adopt"        // make a directory a step of a run
	JobEmptyTrash   JobKind = "empty-trash"  // remove what has been in the trash long enough
	JobReadTracker  JobKind = "read-tracker" // find the directory that Megatron's tracker file names
)

// JobState is the state of a job.
type JobState string

// The states of jobs. A job that is done, failed or canceled has ended.
const (
	JobPending  JobState = "pending"
	JobRunning  JobState = "running"
	JobDone     JobState = "done"
	JobFailed   JobState = "failed"
	JobCanceled JobState = "canceled"
)

// unknown is the kind and the state of a job of a newer release.
const unknown = "unknown"

var jobKinds = map[wire.JobKind]JobKind{
	wire.JobKind_JOB_KIND_FLUSH: JobFlush, wire.JobKind_JOB_KIND_STAGE: JobStage, wire.JobKind_JOB_KIND_EVICT: JobEvict,
	wire.JobKind_JOB_KIND_MOVE_TREE: JobMoveTree, wire.JobKind_JOB_KIND_DELETE_OBJECT: JobDeleteObject,
	wire.JobKind_JOB_KIND_REPAIR: JobRepair, wire.JobKind_JOB_KIND_REBALANCE: JobRebalance, wire.JobKind_JOB_KIND_REWRITE: JobRewrite,
	wire.JobKind_JOB_KIND_SCAN_DEVICE: JobScanDevice, wire.JobKind_JOB_KIND_COMMIT_STEP: JobCommitStep,
	wire.JobKind_JOB_KIND_REMOVE_TREE: JobRemoveTree, wire.JobKind_JOB_KIND_DROP_TABLES: JobDropTables,
	wire.JobKind_JOB_KIND_RECOUNT: JobRecount, wire.JobKind_JOB_KIND_CLONE_TREE: JobCloneTree, wire.JobKind_JOB_KIND_CONCAT: JobConcat,
	wire.JobKind_JOB_KIND_ADOPT: JobAdopt, wire.JobKind_JOB_KIND_READ_TRACKER: JobReadTracker,
	wire.JobKind_JOB_KIND_EMPTY_TRASH: JobEmptyTrash,
}

var jobStates = map[wire.JobState]JobState{
	wire.JobState_JOB_STATE_PENDING: JobPending, wire.JobState_JOB_STATE_RUNNING: JobRunning, wire.JobState_JOB_STATE_DONE: JobDone,
	wire.JobState_JOB_STATE_FAILED: JobFailed, wire.JobState_JOB_STATE_CANCELED: JobCanceled,
}

// wire returns the kind's wire form; UNSPECIFIED, which the service refuses, for an unknown one.
func (k JobKind) wire() wire.JobKind {
	for w, kind := range jobKinds {
		if kind == k {
			return w
		}
	}
	return wire.JobKind_JOB_KIND_UNSPECIFIED
}

func jobOf(w *wire.Job) Job {
	j := Job{ID: moraine.JobID(w.GetId()), Kind: jobKindOf(w.GetKind()), State: jobStateOf(w.GetState()), Subject: w.GetSubject(),
		Inode: moraine.InodeID(w.GetInode()), Done: w.GetDone(), Total: w.GetTotal(),
		Holder: w.GetHolder(), Attempts: w.GetAttempts(), Error: w.GetError(), Failed: moraine.Kind(w.GetFailed()),
		Created: w.GetCreated(), NotBefore: w.GetNotBefore(), generation: moraine.Generation(w.GetGeneration())}
	if w.GetMoves() != wire.JobKind_JOB_KIND_UNSPECIFIED {
		j.Moves = jobKindOf(w.GetMoves())
	}
	return j
}

func jobKindOf(w wire.JobKind) JobKind {
	if k, ok := jobKinds[w]; ok {
		return k
	}
	return unknown
}

func jobStateOf(w wire.JobState) JobState {
	if s, ok := jobStates[w]; ok {
		return s
	}
	return unknown
}

// Ended reports whether the job has ended: it is done, failed or canceled.
func (j Job) Ended() bool { return j.State != JobPending && j.State != JobRunning }

// Blocked reports whether a flush waits for a person: an object that this cluster did not write is
// at its key. The job's Error says what to do, and the flush is tried ever less often meanwhile.
func (j Job) Blocked() bool {
	return j.Kind == JobFlush && j.State == JobPending && j.Failed == moraine.Exists
}
