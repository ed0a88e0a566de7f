package record

import (
	"encoding/binary"
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
	// MaxBackoff bounds how long a failed job waits for its next try, in
	// milliseconds of cluster time.
	MaxBackoff = 30_000
)

// Job is work that outlives the process that does it.
type Job struct {
	Id      moraine.JobID // in the key
	Kind    wire.JobKind
	State   wire.JobState
	Holder  string
	Epoch   uint64 // raised by each lease
	Until   uint64 // end of the lease, cluster time
	Done    uint64
	Total   uint64
	Err     string
	Created uint64 // cluster time
	Updated uint64
	Subject string
	Step    StepID // of a checkpoint's job
	Target  uint64 // device, of a scan
	Cursor  []byte
	Leases  uint32
	Tries   uint32 // that failed
	After   uint64 // not before: cluster time
	Stripes []moraine.StripeID

	// Of jobs of the object tier. Their target is the inode,
	// or the object that is to be deleted.
	Parent moraine.JobID // MOVE_TREE that counts it
	Moves  wire.JobKind  // what a MOVE_TREE queues
	Again  bool          // FLUSH: another is to follow
	Made   bool          // FLUSH: it has recorded an object
	Ending wire.JobState // it only settles what it had begun, and ends so

	// Of a CONCAT that has ended.
	Generation moraine.Generation // of the content that it gave its target
	Why        moraine.Kind       // it failed

	Owner moraine.SessionID // whose live jobs it counts among; 0: nobody's
	// scope is the directory that the session which asked for the job was confined to; 0:
	// none. Sessions that are confined see only the jobs of their scope.
	Scope moraine.InodeID
}

const JobVersion = 1

func (j *Job) Encode() []byte {
	b := make([]byte, 0, 96+len(j.Subject)+len(j.Cursor)+8*len(j.Stripes))
	b = append(b, JobVersion, byte(j.Kind), byte(j.State))
	b = PutString(b, j.Holder)
	b = PutUvarint(b, j.Epoch)
	b = PutUvarint(b, j.Until)
	b = PutUvarint(b, j.Done)
	b = PutUvarint(b, j.Total)
	b = PutString(b, j.Err)
	b = PutUvarint(b, j.Created)
	b = PutUvarint(b, j.Updated)
	b = PutString(b, j.Subject)
	b = j.Step.Encode(b)
	b = PutUvarint(b, j.Target)
	b = PutBytes(b, j.Cursor)
	b = PutUvarint(b, uint64(j.Leases))
	b = PutUvarint(b, uint64(j.Tries))
	b = PutUvarint(b, j.After)
	b = PutUvarint(b, uint64(len(j.Stripes)))
	for _, s := range j.Stripes {
		b = PutFixed64(b, uint64(s))
	}
	b = append(PutFixed64(b, uint64(j.Parent)), byte(j.Moves))
	b = append(putBool(putBool(b, j.Again), j.Made), byte(j.Ending))
	b = append(PutFixed64(b, uint64(j.Generation)), byte(j.Why))
	return PutFixed64(PutFixed64(b, uint64(j.Owner)), uint64(j.Scope))
}

func (j *Job) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(JobVersion)
	j.Kind = wire.JobKind(d.Byte())
	j.State = wire.JobState(d.Byte())
	j.Holder = d.string()
	j.Epoch = d.Uvarint()
	j.Until = d.Uvarint()
	j.Done = d.Uvarint()
	j.Total = d.Uvarint()
	j.Err = d.string()
	j.Created = d.Uvarint()
	j.Updated = d.Uvarint()
	j.Subject = d.string()
	j.Step.Decode(&d)
	j.Target = d.Uvarint()
	j.Cursor = d.bytes()
	j.Leases = d.U32()
	j.Tries = d.U32()
	j.After = d.Uvarint()
	for range d.Count(8) {
		j.Stripes = append(j.Stripes, moraine.StripeID(d.Fixed64()))
	}
	j.Parent, j.Moves = moraine.JobID(d.Fixed64()), wire.JobKind(d.Byte())
	j.Again, j.Made, j.Ending = d.bool(), d.bool(), wire.JobState(d.Byte())
	j.Generation, j.Why = moraine.Generation(d.Fixed64()), moraine.Kind(d.Byte())
	j.Owner, j.Scope = moraine.SessionID(d.Fixed64()), moraine.InodeID(d.Fixed64())
	return d.End("job")
}

// Live reports whether the job has not ended.
func (j *Job) Live() bool {
	return j.State == wire.JobState_JOB_STATE_PENDING || j.State == wire.JobState_JOB_STATE_RUNNING
}

func (j *Job) ToWire() *wire.Job {
	w := &wire.Job{
		Id: uint64(j.Id), Kind: j.Kind, State: j.State, Holder: j.Holder, LeaseEpoch: j.Epoch, LeaseUntil: j.Until,
		Done: j.Done, Total: j.Total, Error: j.Err, Created: j.Created, Updated: j.Updated, Subject: j.Subject,
		Cursor: j.Cursor, Attempts: j.Leases, NotBefore: j.After,
	}
	if j.Step != (StepID{}) {
		w.Step = j.Step.ToWire()
	}
	if OfFile(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE {
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

// BackoffTo is backoff with another bound, of a million seconds at most.
func BackoffTo(tries uint32, most uint64) uint64 {
	if tries == 0 {
		return 0
	}
	return min(uint64(1000)<<min(tries-1, 20), most)
}

// Utoa writes a number for people.
func Utoa(n uint64) string { return strconv.FormatUint(n, 10) }

const ownedVersion = 1

func EncodeOwned(n uint64) []byte { return PutUvarint([]byte{ownedVersion}, n) }

func DecodeOwned(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(ownedVersion)
	n := d.Uvarint()
	return n, d.End("jobs of a session")
}

// OfFile reports whether jobs of a kind move one file to or from the object
// tier: of each kind a file has one live job at most.
func OfFile(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_FLUSH || kind == wire.JobKind_JOB_KIND_STAGE || kind == wire.JobKind_JOB_KIND_EVICT
}

// OfTier reports whether only movers with a bucket lease jobs of a kind.
func OfTier(kind wire.JobKind) bool {
	return OfFile(kind) || kind == wire.JobKind_JOB_KIND_DELETE_OBJECT
}

func DecodeTreeDir(b []byte) (string, error) {
	d := Dec{B: b}
	d.Version(JobVersion)
	name := d.string()
	return name, d.End("directory of a tree")
}

// Failed keeps the first reason for which not everything was done.
func (j *Job) Failed(why string) {
	if j.Err == "" {
		j.Err = Clip(why, moraine.MaxNameLen)
	}
}

// PackTask is what a live REWRITE job that packs has to do; nil for another.
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

// RewriteTask is what a live REWRITE job has to do; nil for other jobs.
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

// Clip cuts a text for people to at most n bytes, between characters.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
