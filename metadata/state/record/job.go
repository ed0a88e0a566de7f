package record

import (
	"encoding/binary"
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// JobLeaseMillis is how long a job lease lasts after each renewal, in milliseconds of cluster
	// time.
	JobLeaseMillis = 15_000
	// MaxLeaseJobs is the largest number of jobs that one request leases.
	MaxLeaseJobs = 64
	// MaxJobTries is the number of failures after which a retried job fails permanently.
	MaxJobTries = 16
	// MaxEndedJobs is the number of ended jobs that are remembered.
	MaxEndedJobs = 1000
	// MaxBackoff bounds the delay before a failed job's next try, in milliseconds of cluster time.
	MaxBackoff = 30_000
	// stuckTries is the number of failures after which a job of the object tier counts as stuck: the
	// bucket has refused it for more than a minute.
	stuckTries = 8
)

// Job is work that outlives the process that does it, such as a repair or a flush.
type Job struct {
	Id      moraine.JobID // in the key
	Kind    wire.JobKind
	State   wire.JobState
	Holder  string
	Epoch   uint64 // grows with each lease
	Until   uint64 // end of the job lease, cluster time
	Done    uint64
	Total   uint64
	Err     string
	Created uint64 // cluster time
	Updated uint64
	Subject string
	Step    StepID // of a checkpoint's job
	Target  uint64 // device of a scan; directory or tracker file of an adoption
	Cursor  []byte
	Leases  uint32
	Tries   uint32 // number of failed tries
	After   uint64 // earliest next try, cluster time
	Stripes []moraine.StripeID

	// For jobs of the object tier. Their target is the inode, or the object to delete.
	Parent moraine.JobID // MOVE_TREE job that counts it
	Moves  wire.JobKind  // kind of the jobs that a MOVE_TREE queues
	Again  bool          // FLUSH: another flush must follow
	Made   bool          // FLUSH: it recorded an object
	Ending wire.JobState // it only settles what it began, and then ends in this state

	Generation moraine.Generation // generation that a CONCAT which has ended gave its target
	// Why is the kind of the failure of a CONCAT that has ended, or of the last try of a job of the
	// object tier.
	Why moraine.Kind

	Owner moraine.SessionID // session whose live jobs include it; 0: none
	// Scope is the directory to which the requesting session was confined; 0: none. Confined
	// sessions see only jobs of their scope.
	Scope moraine.InodeID
}

const JobVersion = 1

// Encode returns the stored value.
func (j *Job) Encode() []byte {
	return j.fields(encoder(96 + len(j.Subject) + len(j.Cursor) + 8*len(j.Stripes))).B
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (j *Job) Decode(b []byte) error { return j.fields(decoder(b)).End("job") }

func (j *Job) fields(c *codec) *codec {
	c.version(JobVersion)
	oneByte(c, &j.Kind)
	oneByte(c, &j.State)
	c.string(&j.Holder)
	uvarint(c, &j.Epoch)
	uvarint(c, &j.Until)
	uvarint(c, &j.Done)
	uvarint(c, &j.Total)
	c.string(&j.Err)
	uvarint(c, &j.Created)
	uvarint(c, &j.Updated)
	c.string(&j.Subject)
	j.Step.fields(c)
	uvarint(c, &j.Target)
	c.bytes(&j.Cursor)
	uvarint(c, &j.Leases)
	uvarint(c, &j.Tries)
	uvarint(c, &j.After)
	stripes := list(c, &j.Stripes, 8)
	for i := range stripes {
		fixed64(c, &stripes[i])
	}
	fixed64(c, &j.Parent)
	oneByte(c, &j.Moves)
	c.bool(&j.Again)
	c.bool(&j.Made)
	oneByte(c, &j.Ending)
	fixed64(c, &j.Generation)
	oneByte(c, &j.Why)
	fixed64(c, &j.Owner)
	fixed64(c, &j.Scope)
	return c
}

// Live reports whether the job is still pending or leased.
func (j *Job) Live() bool {
	return j.State == wire.JobState_JOB_STATE_PENDING || j.State == wire.JobState_JOB_STATE_RUNNING
}

// Blocked reports whether a live flush waits for a person: the bucket has an object at the key that
// this cluster did not write.
func (j *Job) Blocked() bool {
	return j.Kind == wire.JobKind_JOB_KIND_FLUSH && j.Live() && j.Why == moraine.Exists
}

// Stuck reports whether a live job of the object tier makes no progress: it is blocked, or has failed
// stuckTries times. CStuckMoves counts these jobs.
func (j *Job) Stuck() bool {
	return OfTier(j.Kind) && j.Live() && (j.Tries >= stuckTries || j.Blocked())
}

// ToWire returns the wire form.
func (j *Job) ToWire() *wire.Job {
	w := &wire.Job{
		Id: uint64(j.Id), Kind: j.Kind, State: j.State, Holder: j.Holder, LeaseEpoch: j.Epoch, LeaseUntil: j.Until,
		Done: j.Done, Total: j.Total, Error: j.Err, Created: j.Created, Updated: j.Updated, Subject: j.Subject,
		Cursor: j.Cursor, Attempts: j.Leases, NotBefore: j.After,
	}
	if j.Step != (StepID{}) {
		w.Step = j.Step.ToWire()
	}
	if OfFile(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE || OfAdoption(j.Kind) {
		w.Inode, w.Moves = j.Target, j.Moves
	}
	if j.Kind == wire.JobKind_JOB_KIND_CONCAT && j.State == wire.JobState_JOB_STATE_DONE {
		w.Inode = j.Target
	}
	if w.Rewrite = j.RewriteTask(); w.Rewrite != nil || j.Kind == wire.JobKind_JOB_KIND_REWRITE {
		w.Inode = j.Target
	}
	w.Generation, w.Failed = uint64(j.Generation), uint32(j.Why)
	return w
}

// BackoffTo returns the delay after a number of tries, with the bound most, in milliseconds. most
// is at most 1,000,000 seconds.
func BackoffTo(tries uint32, most uint64) uint64 {
	if tries == 0 {
		return 0
	}
	return min(uint64(1000)<<min(tries-1, 20), most)
}

// Utoa formats a number in decimal.
func Utoa(n uint64) string { return strconv.FormatUint(n, 10) }

const ownedVersion = 1

// EncodeOwned returns the stored value of a session's number of live jobs.
func EncodeOwned(n uint64) []byte { return EncodeNumber(ownedVersion, n) }

// DecodeOwned decodes a session's number of live jobs.
func DecodeOwned(b []byte) (uint64, error) {
	return DecodeNumber[uint64](ownedVersion, b, "jobs of a session")
}

// OfFile reports whether jobs of a kind move one file to or from the object tier. A file has at
// most one live job of each such kind.
func OfFile(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_FLUSH || kind == wire.JobKind_JOB_KIND_STAGE || kind == wire.JobKind_JOB_KIND_EVICT
}

// OfTier reports whether only movers with a bucket can lease jobs of a kind.
func OfTier(kind wire.JobKind) bool {
	return OfFile(kind) || kind == wire.JobKind_JOB_KIND_DELETE_OBJECT
}

// OfAdoption reports whether jobs of a kind adopt a directory. A directory or tracker file has at most
// one live job of these.
func OfAdoption(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_ADOPT || kind == wire.JobKind_JOB_KIND_READ_TRACKER
}

// DecodeTreeDir decodes the last name that a tree job saw in a directory.
func DecodeTreeDir(b []byte) (string, error) { return decodeText(JobVersion, b, "directory of a tree") }

// Failed records the first reason why the job did not do everything.
func (j *Job) Failed(why string) {
	if j.Err == "" {
		j.Err = Clip(why, moraine.MaxNameLen)
	}
}

// PackTask returns the task of a live REWRITE job that packs; nil for other jobs.
func (j *Job) PackTask() *wire.RewriteTask {
	if j.Kind != wire.JobKind_JOB_KIND_REWRITE || len(j.Stripes) > 0 || len(j.Cursor) < 8 {
		return nil
	}
	task := &wire.RewriteTask{Settled: binary.BigEndian.Uint64(j.Cursor)}
	for c := j.Cursor[8:]; len(c) >= 8; c = c[8:] {
		task.Files = append(task.Files, binary.BigEndian.Uint64(c))
	}
	return task
}

// RewriteTask returns the task of a live REWRITE job; nil for other jobs.
func (j *Job) RewriteTask() *wire.RewriteTask {
	if task := j.PackTask(); task != nil {
		return task
	}
	if j.Kind != wire.JobKind_JOB_KIND_REWRITE || len(j.Cursor) < 16 {
		return nil
	}
	task := &wire.RewriteTask{Offset: binary.BigEndian.Uint64(j.Cursor), End: binary.BigEndian.Uint64(j.Cursor[8:])}
	if len(j.Cursor) > 16 {
		task.Fewer = uint32(j.Cursor[16])
	}
	for _, s := range j.Stripes {
		task.Stripes = append(task.Stripes, uint64(s))
	}
	return task
}

// Clip cuts a text to at most n bytes at a character boundary.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
