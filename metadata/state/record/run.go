package record

import "github.com/morainefs/moraine"

// Run is a training run: a directory in which attempts save checkpoints.
type Run struct {
	Id        moraine.RunID // the directory's inode; in the key
	Attempt   uint32        // the present attempt
	Committed uint64        // committed steps of all attempts
}

const RunVersion = 1

// Encode returns the stored value.
func (r *Run) Encode() []byte {
	return PutUvarint(PutUvarint([]byte{RunVersion}, uint64(r.Attempt)), r.Committed)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (r *Run) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(RunVersion)
	r.Attempt = d.U32()
	r.Committed = d.Uvarint()
	return d.End("run")
}

// Attempt is one launch of a run. Only the present attempt may save.
type Attempt struct {
	Number  uint32 // in the key
	Launch  string
	Job     string // the scheduler's job; may be empty
	Restart uint64 // within the job
	// Resolved says whether its parent checkpoint is fixed. If so, a zero parent means that the
	// attempt has none.
	Resolved bool
	Parent   StepID
}

// Encode returns the stored value.
func (a *Attempt) Encode() []byte {
	b := PutString([]byte{RunVersion}, a.Launch)
	b = PutString(b, a.Job)
	b = PutUvarint(b, a.Restart)
	b = putBool(b, a.Resolved)
	return a.Parent.Encode(b)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (a *Attempt) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(RunVersion)
	a.Launch = d.string()
	a.Job = d.string()
	a.Restart = d.Uvarint()
	a.Resolved = d.bool()
	a.Parent.Decode(&d)
	return d.End("attempt")
}
