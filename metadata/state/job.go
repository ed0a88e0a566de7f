package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// job returns a job's record; nil where there is none.
func (v *view) job(id moraine.JobID) (*record.Job, error) {
	b, ok, err := v.r.Get(v.k.job(id))
	if err != nil || !ok {
		return nil, err
	}
	j := &record.Job{Id: id}
	return j, j.Decode(b)
}

func (t *tx) putJob(j *record.Job) {
	j.Updated = t.clusterTime()
	t.put(t.k.job(j.Id), j.Encode())
}

// jobSpec is a job to be made.
type jobSpec struct {
	kind    wire.JobKind
	subject string // for people
	step    record.StepID
	target  uint64
	cursor  []byte
	stripes []moraine.StripeID
	total   uint64
	after   uint64
	parent  moraine.JobID
	moves   wire.JobKind
	owner   moraine.SessionID
}

// addJob makes a job that is ready to be leased or run.
func (m *Machine) addJob(t *tx, spec jobSpec) (moraine.JobID, error) {
	id, err := t.nextID(record.CJob)
	if err != nil {
		return 0, err
	}
	j := &record.Job{
		Id: moraine.JobID(id), Kind: spec.kind, State: wire.JobState_JOB_STATE_PENDING, Created: t.clusterTime(),
		Subject: spec.subject, Step: spec.step, Target: spec.target, Cursor: spec.cursor, Stripes: spec.stripes, Total: spec.total,
		After: spec.after, Parent: spec.parent, Moves: spec.moves, Owner: spec.owner,
	}
	if t.scope.root != t.k.top() {
		j.Scope = t.scope.root
	}
	if err := t.countOwned(j, 1); err != nil {
		return 0, err
	}
	t.putJob(j)
	t.put(t.k.jobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	t.countMoves(j, 1)
	t.events.JobsReady = true
	return j.Id, nil
}

// addedJob is addJob that returns the job as it is told of.
func (m *Machine) addedJob(t *tx, spec jobSpec) (*wire.Job, error) {
	id, err := m.addJob(t, spec)
	if err != nil {
		return nil, err
	}
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	return j.ToWire(), nil
}

// unindex takes a live job out of the index that it stands in.
func (t *tx) unindexJob(j *record.Job) {
	if j.State == wire.JobState_JOB_STATE_PENDING {
		t.del(t.k.jobReady(uint8(j.Kind), j.After, j.Id))
	} else {
		t.del(t.k.jobLease(j.Until, j.Id))
	}
}

// retryJob has a live job wait for its next lease.
func (m *Machine) retryJob(t *tx, j *record.Job) {
	t.unindexJob(j)
	j.State, j.Holder, j.Until = wire.JobState_JOB_STATE_PENDING, "", 0
	j.After = t.clusterTime() + backoff(j.Tries)
	t.put(t.k.jobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	t.putJob(j)
}

// backoff is how long to wait after a number of failures, in milliseconds.
func backoff(tries uint32) uint64 { return record.BackoffTo(tries, record.MaxBackoff) }

// endJob ends a live job, lets go of what it worked on, and forgets the oldest
// ended ones past their bound, and at once a rewriting that is done. The same job may be ended
// once only.
func (m *Machine) endJob(t *tx, j *record.Job, state wire.JobState, reason string) error {
	t.unindexJob(j)
	t.countMoves(j, -1)
	if err := t.countOwned(j, -1); err != nil {
		return err
	}
	if err := m.releaseJob(t, j, state, reason); err != nil {
		return err
	}
	if j.Kind == wire.JobKind_JOB_KIND_REWRITE && state == wire.JobState_JOB_STATE_DONE {
		// They are many, and nobody asks for one: it would push others out.
		t.del(t.k.job(j.Id))
		return nil
	}
	j.State, j.Err, j.Until, j.Stripes, j.Cursor, j.Owner = state, reason, 0, nil, nil, 0
	t.putJob(j)
	t.put(t.k.jobEnded(j.Updated, j.Id), []byte{record.JobVersion})
	t.count[record.CJobsEnded]++
	for t.count[record.CJobsEnded] > record.MaxEndedJobs {
		keys, err := t.keysUnder(t.k.table(record.TabJobEnded), 1)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return &moraine.Error{Op: "end job", Kind: moraine.Corrupt}
		}
		t.del(keys[0])
		t.del(t.k.job(moraine.JobID(record.LastU64(keys[0]))))
		t.count[record.CJobsEnded]--
	}
	return nil
}

// releaseJob does what the end of a job means to what it was for.
func (m *Machine) releaseJob(t *tx, j *record.Job, state wire.JobState, reason string) error {
	switch j.Kind {
	case wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_REBALANCE:
		return m.releaseRepairs(t, j, state == wire.JobState_JOB_STATE_FAILED)
	case wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT:
		why := ""
		if state != wire.JobState_JOB_STATE_DONE {
			why = j.Subject + ": " + reason
		}
		return m.childEnded(t, j.Parent, why)
	case wire.JobKind_JOB_KIND_COMMIT_STEP:
		if state != wire.JobState_JOB_STATE_DONE {
			return m.abortUnjudged(t, j, reason)
		}
	}
	return nil
}
