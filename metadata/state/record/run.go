package record

import "github.com/morainefs/moraine"

// Run is a training run: a directory in which attempts save checkpoints.
type Run struct {
	Id        moraine.RunID // the directory's inode; in the key
	Attempt   uint32        // the present attempt
	Committed uint64        // committed steps of all attempts
	// Of these, the steps at nvme or safer, and those at object.
	AtNVMe, AtObject uint64
}

const RunVersion = 1

// Encode returns the stored value.
func (r *Run) Encode() []byte { return r.fields(encoder(16)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (r *Run) Decode(b []byte) error { return r.fields(decoder(b)).End("run") }

func (r *Run) fields(c *codec) *codec {
	c.version(RunVersion)
	uvarint(c, &r.Attempt)
	uvarint(c, &r.Committed)
	uvarint(c, &r.AtNVMe)
	uvarint(c, &r.AtObject)
	return c
}

// AddStep counts a committed step of the run that has a level; by is 1, or -1 to remove it.
func (r *Run) AddStep(level moraine.Level, by int) {
	r.Committed += uint64(by)
	r.AtNVMe += uint64(by) * (1 - below(level, moraine.NVMe))
	r.AtObject += uint64(by) * (1 - below(level, moraine.Object))
}

// HasLevel reports whether a committed step of the run has the level or a safer one.
func (r *Run) HasLevel(level moraine.Level) bool {
	switch {
	case level >= moraine.Object:
		return r.AtObject > 0
	case level == moraine.NVMe:
		return r.AtNVMe > 0
	}
	return r.Committed > 0
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
	// Stepped is the latest earlier attempt that may have a committed step, and Before that or a later one
	// that has fixed its parent; 0 if none. A job that fails at each start makes attempts without steps:
	// searches pass them over.
	Stepped, Before uint32
	// Saved says whether its ranks have committed a step, and SavedStep the number of the last one.
	Saved     bool
	SavedStep uint64
}

// Encode returns the stored value.
func (a *Attempt) Encode() []byte { return a.fields(encoder(48 + len(a.Launch) + len(a.Job))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (a *Attempt) Decode(b []byte) error { return a.fields(decoder(b)).End("attempt") }

func (a *Attempt) fields(c *codec) *codec {
	c.version(RunVersion)
	c.string(&a.Launch)
	c.string(&a.Job)
	uvarint(c, &a.Restart)
	c.bool(&a.Resolved)
	a.Parent.fields(c)
	uvarint(c, &a.Stepped)
	uvarint(c, &a.Before)
	c.bool(&a.Saved)
	uvarint(c, &a.SavedStep)
	return c
}
