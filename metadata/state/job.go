package state

import (
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// JobLeaseMillis is how long a leased job is its holder's after each
	// renewal, in milliseconds of cluster time.
	JobLeaseMillis = 15_000
	// MaxLeaseJobs is the most jobs that one request leases.
	MaxLeaseJobs = 64
	// MaxJobTries is after how many failures a job that is retried is given up.
	MaxJobTries = 16
	// MaxEndedJobs is how many jobs that ended are remembered.
	MaxEndedJobs = 1000
	// maxBackoff bounds how long a failed job waits for its next try, in
	// milliseconds of cluster time.
	maxBackoff = 30_000
)

// job is work that outlives the process that does it.
type job struct {
	id      moraine.JobID // in the key
	kind    wire.JobKind
	state   wire.JobState
	holder  string
	epoch   uint64 // raised by each lease
	until   uint64 // end of the lease, cluster time
	done    uint64
	total   uint64
	err     string
	created uint64 // cluster time
	updated uint64
	subject string
	step    stepID // of a checkpoint's job
	target  uint64 // device, of a scan
	cursor  []byte
	leases  uint32
	tries   uint32 // that failed
	after   uint64 // not before: cluster time
	stripes []moraine.StripeID

	// Of jobs of the object tier. Their target is the inode,
	// or the object that is to be deleted.
	parent moraine.JobID // MOVE_TREE that counts it
	moves  wire.JobKind  // what a MOVE_TREE queues
	again  bool          // FLUSH: another is to follow
	made   bool          // FLUSH: it has recorded an object
	ending wire.JobState // it only settles what it had begun, and ends so

	// Of a CONCAT that has ended.
	generation moraine.Generation // of the content that it gave its target
	why        moraine.Kind       // it failed

	owner moraine.SessionID // whose live jobs it counts among; 0: nobody's
	// scope is the directory that the session which asked for the job was confined to; 0:
	// none. Sessions that are confined see only the jobs of their scope.
	scope moraine.InodeID
}

const jobVersion = 1

func (j *job) encode() []byte {
	b := make([]byte, 0, 96+len(j.subject)+len(j.cursor)+8*len(j.stripes))
	b = append(b, jobVersion, byte(j.kind), byte(j.state))
	b = putString(b, j.holder)
	b = putUvarint(b, j.epoch)
	b = putUvarint(b, j.until)
	b = putUvarint(b, j.done)
	b = putUvarint(b, j.total)
	b = putString(b, j.err)
	b = putUvarint(b, j.created)
	b = putUvarint(b, j.updated)
	b = putString(b, j.subject)
	b = j.step.encode(b)
	b = putUvarint(b, j.target)
	b = putBytes(b, j.cursor)
	b = putUvarint(b, uint64(j.leases))
	b = putUvarint(b, uint64(j.tries))
	b = putUvarint(b, j.after)
	b = putUvarint(b, uint64(len(j.stripes)))
	for _, s := range j.stripes {
		b = putFixed64(b, uint64(s))
	}
	b = append(putFixed64(b, uint64(j.parent)), byte(j.moves))
	b = append(putBool(putBool(b, j.again), j.made), byte(j.ending))
	b = append(putFixed64(b, uint64(j.generation)), byte(j.why))
	return putFixed64(putFixed64(b, uint64(j.owner)), uint64(j.scope))
}

func (j *job) decode(b []byte) error {
	d := dec{b: b}
	d.version(jobVersion)
	j.kind = wire.JobKind(d.byte())
	j.state = wire.JobState(d.byte())
	j.holder = d.string()
	j.epoch = d.uvarint()
	j.until = d.uvarint()
	j.done = d.uvarint()
	j.total = d.uvarint()
	j.err = d.string()
	j.created = d.uvarint()
	j.updated = d.uvarint()
	j.subject = d.string()
	j.step.decode(&d)
	j.target = d.uvarint()
	j.cursor = d.bytes()
	j.leases = d.u32()
	j.tries = d.u32()
	j.after = d.uvarint()
	for range d.count(8) {
		j.stripes = append(j.stripes, moraine.StripeID(d.fixed64()))
	}
	j.parent, j.moves = moraine.JobID(d.fixed64()), wire.JobKind(d.byte())
	j.again, j.made, j.ending = d.bool(), d.bool(), wire.JobState(d.byte())
	j.generation, j.why = moraine.Generation(d.fixed64()), moraine.Kind(d.byte())
	j.owner, j.scope = moraine.SessionID(d.fixed64()), moraine.InodeID(d.fixed64())
	return d.end("job")
}

// live reports whether the job has not ended.
func (j *job) live() bool {
	return j.state == wire.JobState_JOB_STATE_PENDING || j.state == wire.JobState_JOB_STATE_RUNNING
}

func (j *job) toWire() *wire.Job {
	w := &wire.Job{
		Id: uint64(j.id), Kind: j.kind, State: j.state, Holder: j.holder, LeaseEpoch: j.epoch, LeaseUntil: j.until,
		Done: j.done, Total: j.total, Error: j.err, Created: j.created, Updated: j.updated, Subject: j.subject,
		Cursor: j.cursor, Attempts: j.leases, NotBefore: j.after,
	}
	if j.step != (stepID{}) {
		w.Step = j.step.toWire()
	}
	if ofFile(j.kind) || j.kind == wire.JobKind_JOB_KIND_MOVE_TREE {
		w.Inode, w.Moves = j.target, j.moves
	}
	if j.kind == wire.JobKind_JOB_KIND_CONCAT && j.state == wire.JobState_JOB_STATE_DONE {
		w.Inode = j.target
	}
	if w.Rewrite = j.rewriteTask(); w.Rewrite != nil || j.kind == wire.JobKind_JOB_KIND_REWRITE {
		w.Inode = j.target
	}
	w.Generation, w.Failed = uint64(j.generation), uint32(j.why)
	return w
}

// job returns a job's record; nil where there is none.
func (v *view) job(id moraine.JobID) (*job, error) {
	b, ok, err := v.r.Get(v.k.job(id))
	if err != nil || !ok {
		return nil, err
	}
	j := &job{id: id}
	return j, j.decode(b)
}

func (t *tx) putJob(j *job) {
	j.updated = t.clusterTime()
	t.put(t.k.job(j.id), j.encode())
}

// jobSpec is a job to be made.
type jobSpec struct {
	kind    wire.JobKind
	subject string // for people
	step    stepID
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
	id, err := t.nextID(cJob)
	if err != nil {
		return 0, err
	}
	j := &job{
		id: moraine.JobID(id), kind: spec.kind, state: wire.JobState_JOB_STATE_PENDING, created: t.clusterTime(),
		subject: spec.subject, step: spec.step, target: spec.target, cursor: spec.cursor, stripes: spec.stripes, total: spec.total,
		after: spec.after, parent: spec.parent, moves: spec.moves, owner: spec.owner,
	}
	if t.scope.root != t.k.top() {
		j.scope = t.scope.root
	}
	if err := t.countOwned(j, 1); err != nil {
		return 0, err
	}
	t.putJob(j)
	t.put(t.k.jobReady(uint8(j.kind), j.after, j.id), []byte{jobVersion})
	t.countMoves(j, 1)
	t.events.JobsReady = true
	return j.id, nil
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
	return j.toWire(), nil
}

// unindex takes a live job out of the index that it stands in.
func (t *tx) unindexJob(j *job) {
	if j.state == wire.JobState_JOB_STATE_PENDING {
		t.del(t.k.jobReady(uint8(j.kind), j.after, j.id))
	} else {
		t.del(t.k.jobLease(j.until, j.id))
	}
}

// retryJob has a live job wait for its next lease.
func (m *Machine) retryJob(t *tx, j *job) {
	t.unindexJob(j)
	j.state, j.holder, j.until = wire.JobState_JOB_STATE_PENDING, "", 0
	j.after = t.clusterTime() + backoff(j.tries)
	t.put(t.k.jobReady(uint8(j.kind), j.after, j.id), []byte{jobVersion})
	t.putJob(j)
}

// backoff is how long to wait after a number of failures, in milliseconds.
func backoff(tries uint32) uint64 { return backoffTo(tries, maxBackoff) }

// backoffTo is backoff with another bound, of a million seconds at most.
func backoffTo(tries uint32, most uint64) uint64 {
	if tries == 0 {
		return 0
	}
	return min(uint64(1000)<<min(tries-1, 20), most)
}

// endJob ends a live job, lets go of what it worked on, and forgets the oldest
// ended ones past their bound, and at once a rewriting that is done. The same job may be ended
// once only.
func (m *Machine) endJob(t *tx, j *job, state wire.JobState, reason string) error {
	t.unindexJob(j)
	t.countMoves(j, -1)
	if err := t.countOwned(j, -1); err != nil {
		return err
	}
	if err := m.releaseJob(t, j, state, reason); err != nil {
		return err
	}
	if j.kind == wire.JobKind_JOB_KIND_REWRITE && state == wire.JobState_JOB_STATE_DONE {
		// They are many, and nobody asks for one: it would push others out.
		t.del(t.k.job(j.id))
		return nil
	}
	j.state, j.err, j.until, j.stripes, j.cursor, j.owner = state, reason, 0, nil, nil, 0
	t.putJob(j)
	t.put(t.k.jobEnded(j.updated, j.id), []byte{jobVersion})
	t.count[cJobsEnded]++
	for t.count[cJobsEnded] > MaxEndedJobs {
		keys, err := t.keysUnder(t.k.table(tabJobEnded), 1)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return &moraine.Error{Op: "end job", Kind: moraine.Corrupt}
		}
		t.del(keys[0])
		t.del(t.k.job(moraine.JobID(lastU64(keys[0]))))
		t.count[cJobsEnded]--
	}
	return nil
}

// releaseJob does what the end of a job means to what it was for.
func (m *Machine) releaseJob(t *tx, j *job, state wire.JobState, reason string) error {
	switch j.kind {
	case wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_REBALANCE:
		return m.releaseRepairs(t, j, state == wire.JobState_JOB_STATE_FAILED)
	case wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT:
		why := ""
		if state != wire.JobState_JOB_STATE_DONE {
			why = j.subject + ": " + reason
		}
		return m.childEnded(t, j.parent, why)
	case wire.JobKind_JOB_KIND_COMMIT_STEP:
		if state != wire.JobState_JOB_STATE_DONE {
			return m.abortUnjudged(t, j, reason)
		}
	}
	return nil
}

// utoa writes a number for people.
func utoa(n uint64) string { return strconv.FormatUint(n, 10) }
