package record

import "github.com/morainefs/moraine"

// Run is a training run: a directory in which attempts leave checkpoints.
type Run struct {
	Id        moraine.RunID // the directory's inode; in the key
	Attempt   uint32        // the present one
	Committed uint64        // steps, over all attempts
}

const RunVersion = 1

func (r *Run) Encode() []byte {
	return PutUvarint(PutUvarint([]byte{RunVersion}, uint64(r.Attempt)), r.Committed)
}

func (r *Run) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(RunVersion)
	r.Attempt = d.U32()
	r.Committed = d.Uvarint()
	return d.End("run")
}

// Attempt is one start of a run. Only the present one may save.
type Attempt struct {
	Number  uint32 // in the key
	Launch  string
	Job     string // of the scheduler; may be empty
	Restart uint64 // within the job
	// resolved is whether its parent checkpoint is fixed; parent is zero where
	// it was fixed that there is none.
	Resolved bool
	Parent   StepID
}

func (a *Attempt) Encode() []byte {
	b := PutString([]byte{RunVersion}, a.Launch)
	b = PutString(b, a.Job)
	b = PutUvarint(b, a.Restart)
	b = putBool(b, a.Resolved)
	return a.Parent.Encode(b)
}

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
