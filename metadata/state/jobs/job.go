package jobs

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Job returns a job's record; nil if there is none.
func Job(v *kvtx.View, id moraine.JobID) (*record.Job, error) {
	b, ok, err := v.R.Get(v.K.Job(id))
	if err != nil || !ok {
		return nil, err
	}
	j := &record.Job{Id: id}
	return j, j.Decode(b)
}

// PutJob writes a job's record.
func PutJob(t *kvtx.Tx, j *record.Job) {
	j.Updated = t.ClusterTime()
	t.Put(t.K.Job(j.Id), j.Encode())
}

// JobSpec describes a new job.
type JobSpec struct {
	Kind    wire.JobKind
	Subject string // shown to administrators
	Step    record.StepID
	Target  uint64
	Cursor  []byte
	Stripes []moraine.StripeID
	Total   uint64
	After   uint64
	Parent  moraine.JobID
	Moves   wire.JobKind
	Owner   moraine.SessionID
}

// AddJob creates a job that can be leased or run at once.
func AddJob(t *kvtx.Tx, spec JobSpec) (moraine.JobID, error) {
	id, err := t.NextID(record.CJob)
	if err != nil {
		return 0, err
	}
	j := &record.Job{
		Id: moraine.JobID(id), Kind: spec.Kind, State: wire.JobState_JOB_STATE_PENDING, Created: t.ClusterTime(),
		Subject: spec.Subject, Step: spec.Step, Target: spec.Target, Cursor: spec.Cursor, Stripes: spec.Stripes, Total: spec.Total,
		After: spec.After, Parent: spec.Parent, Moves: spec.Moves, Owner: spec.Owner,
	}
	if t.Scope.Root != t.K.Top() {
		j.Scope = t.Scope.Root
	}
	if err := countOwned(t, j, 1); err != nil {
		return 0, err
	}
	PutJob(t, j)
	t.Put(t.K.JobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	countMoves(t, j, 1)
	t.Events.JobsReady = true
	return j.Id, nil
}

// AddedJob is AddJob and returns the job in wire form.
func AddedJob(t *kvtx.Tx, spec JobSpec) (*wire.Job, error) {
	id, err := AddJob(t, spec)
	if err != nil {
		return nil, err
	}
	j, err := Job(&t.View, id)
	if err != nil {
		return nil, err
	}
	return j.ToWire(), nil
}

// UnindexJob removes a live job from its index.
func UnindexJob(t *kvtx.Tx, j *record.Job) {
	if j.State == wire.JobState_JOB_STATE_PENDING {
		t.Del(t.K.JobReady(uint8(j.Kind), j.After, j.Id))
	} else {
		t.Del(t.K.JobLease(j.Until, j.Id))
	}
}

// maxBlockedBackoff is record.MaxBackoff for a flush that finds an object of others at its key. Only a
// person can change that.
const maxBlockedBackoff = 600_000

// RetryJob makes a live job wait for its next lease.
func RetryJob(t *kvtx.Tx, j *record.Job) {
	UnindexJob(t, j)
	j.State, j.Holder, j.Until = wire.JobState_JOB_STATE_PENDING, "", 0
	j.After = t.ClusterTime() + Backoff(j.Tries)
	if j.Blocked() {
		j.After = t.ClusterTime() + record.BackoffTo(j.Tries, maxBlockedBackoff)
	}
	t.Put(t.K.JobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	PutJob(t, j)
}

// RenewJob forgets the failures of a live job. If it is pending, it may be leased now.
func RenewJob(t *kvtx.Tx, j *record.Job) {
	j.Leases, j.Tries = 0, 0
	if j.State == wire.JobState_JOB_STATE_PENDING {
		UnindexJob(t, j)
		j.After = t.ClusterTime()
		t.Put(t.K.JobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	}
	PutJob(t, j)
}

// Backoff returns the delay after a number of failures, in milliseconds.
func Backoff(tries uint32) uint64 { return record.BackoffTo(tries, record.MaxBackoff) }

// EndJob ends a live job and releases its target. It deletes the oldest ended jobs above the bound,
// and a completed rewrite at once. A job can end only once.
func EndJob(t *kvtx.Tx, j *record.Job, state wire.JobState, reason string) error {
	UnindexJob(t, j)
	countMoves(t, j, -1)
	CountStuck(t, j, -1)
	if err := countOwned(t, j, -1); err != nil {
		return err
	}
	if err := t.B.Space.JobEnded(t, j, state, reason); err != nil {
		return err
	}
	if j.Kind == wire.JobKind_JOB_KIND_REWRITE && state == wire.JobState_JOB_STATE_DONE {
		// Rewrites are many, and nobody asks about one: they would push out other jobs.
		t.Del(t.K.Job(j.Id))
		return nil
	}
	j.State, j.Err, j.Until, j.Stripes, j.Cursor, j.Owner = state, reason, 0, nil, nil, 0
	PutJob(t, j)
	t.Put(t.K.JobEnded(j.Updated, j.Id), []byte{record.JobVersion})
	t.Count[record.CJobsEnded]++
	for t.Count[record.CJobsEnded] > record.MaxEndedJobs {
		keys, err := t.KeysUnder(t.K.Table(record.TabJobEnded), 1)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return kvtx.Corrupt("end job", "", "the state counts %d ended jobs and has none", t.Count[record.CJobsEnded])
		}
		t.Del(keys[0])
		t.Del(t.K.Job(moraine.JobID(record.LastU64(keys[0]))))
		t.Count[record.CJobsEnded]--
	}
	return nil
}

// countMoves updates the index and counters of live moves when a job starts (by is 1) or ends (-1).
func countMoves(t *kvtx.Tx, j *record.Job, by int) {
	if !record.OfTier(j.Kind) {
		return
	}
	counter := map[wire.JobKind]record.Counter{
		wire.JobKind_JOB_KIND_FLUSH: record.CFlushes, wire.JobKind_JOB_KIND_STAGE: record.CStages,
		wire.JobKind_JOB_KIND_EVICT: record.CEvictions, wire.JobKind_JOB_KIND_DELETE_OBJECT: record.CDeletions,
	}[j.Kind]
	t.Count[counter] += uint64(by)
	if !record.OfFile(j.Kind) {
		return
	}
	if j.Ending != 0 {
		return // it is no longer in the index
	}
	IndexMove(t, j, by)
}

// CountStuck counts a job (by is 1), or no longer (-1), if it is stuck. Before a change of the job's
// tries the caller counts it no longer, and after the change again.
func CountStuck(t *kvtx.Tx, j *record.Job, by int) {
	if j.Stuck() {
		t.Count[record.CStuckMoves] += uint64(by)
	}
}

// IndexMove adds (by is 1) or removes (-1) a job as the one that moves its file.
func IndexMove(t *kvtx.Tx, j *record.Job, by int) {
	t.Count[record.CMoves] += uint64(by)
	key := t.K.Move(moraine.InodeID(j.Target), uint8(j.Kind))
	if by > 0 {
		t.Put(key, record.EncodeID(record.JobVersion, j.Id))
	} else {
		t.Del(key)
	}
}

// DefaultSettleMillis is how long after the end of a lease a change with a lost
// reply may still arrive at the store. It is in milliseconds of cluster time.
// It applies if the command sets no other time. It is the age up to which a
// store accepts a signature.
const DefaultSettleMillis = 15 * 60 * 1000

// SettleMillis returns how long a change without a seen reply may still arrive, in milliseconds of
// cluster time.
func SettleMillis(t *kvtx.Tx) uint64 {
	if t.SettleTime != 0 {
		return t.SettleTime
	}
	return DefaultSettleMillis
}
