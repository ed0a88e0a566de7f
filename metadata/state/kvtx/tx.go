package kvtx

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxCommandKeys is the hard bound of what one command may write. Commands are
// written to stay near 1,000; one that would pass this bound fails as TooLarge
// and changes nothing.
const MaxCommandKeys = 4096

// View is typed reading of one partition, from a transaction or a snapshot.
type View struct {
	R Reader
	K keys
	// seen, if not nil, gets what an answer shows.
	Seen *Seen
}

// Get implements Reader.
func (v *View) Get(key []byte) ([]byte, bool, error) { return v.R.Get(key) }

// Scan implements Reader.
func (v *View) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	return v.R.Scan(lo, hi, fn)
}

// Batch applies the commands of one log entry: each is atomic by itself, and
// later ones see what earlier ones wrote. Values that several of them touch are
// read and written once. Not safe for concurrent use. A Batch whose Apply or
// Flush failed must be thrown away with everything that it wrote to its KV.
type Batch struct {
	Space *Space
	kv    KV
	// inserter is kv where it can do more, else nil.
	inserter Inserter
	k        keys
	index    uint64
	cells    map[string]*cell
	slabs    cellSlabs // that cells are taken from
	dirty    []*cell   // in the order of their first write
	Count    record.Counters
	sum      record.Sum
	Began    record.Sum // sum before the entry
	fresh    bool       // the store has no counters yet

	usage      map[UsageKey]*usageCell
	dirtyUsage []*usageCell // in the order of their first change

	t   *Tx    // of the command at work
	seq uint64 // numbers what commands wrote, and threw away
}

// Space is one partition of a store: its keys, and what one batch leaves to the next.
type Space struct {
	K     keys
	Hints grantHints            // to save searches; nothing depends on them
	spare atomic.Pointer[Batch] // one that was flushed, for its memory
	// jobEnded does what the end of a job means to what the job was for.
	JobEnded func(t *Tx, j *record.Job, state wire.JobState, reason string) error
}

// NewSpace returns the space of partition p.
func NewSpace(p moraine.Partition) *Space { return &Space{K: keys{P: p}} }

// View reads the partition from r.
func (s *Space) View(r Reader) *View { return &View{R: r, K: s.K} }

// BeginBatch starts a batch for the log entry at index. It reads the counters.
func (s *Space) BeginBatch(kv KV, index uint64) (*Batch, error) {
	b := s.newBatch()
	b.kv, b.index = kv, index
	b.inserter, _ = kv.(Inserter)
	v, ok, err := kv.Get(s.K.Meta(record.MetaCounters))
	if err != nil {
		return nil, err
	}
	if !ok {
		b.fresh = true
	} else if err := b.Count.Decode(v); err != nil {
		return nil, err
	}
	v, ok, err = kv.Get(s.K.Meta(record.MetaSum))
	if err != nil {
		return nil, err
	}
	if ok {
		if b.sum, err = record.DecodeSum(v); err != nil {
			return nil, err
		}
	}
	b.Began = b.sum
	b.Count[record.CEntries]++
	return b, nil
}

// Entries is how many log entries the state has applied, this one included.
func (b *Batch) Entries() uint64 { return b.Count[record.CEntries] }

// Flush writes what the commands of the batch changed to the store, with the
// counters and the sum. The batch must not be used afterwards.
func (b *Batch) Flush() error {
	c := b.cellOf(b.k.Meta(record.MetaCounters))
	c.Value, c.Exists, c.has, c.known = b.Count.Encode(), true, true, c.known || b.fresh
	b.markDirty(c)
	if err := b.push(); err != nil {
		return err
	}
	if err := b.kv.Set(b.k.Meta(record.MetaSum), b.sum.Encode()); err != nil {
		return err
	}
	b.retire()
	return nil
}

// Tx is one command at work: it buffers writes, reads its own, and is merged
// into its batch when the command succeeds or thrown away when it fails, so
// that a failed command leaves nothing behind. It is a Reader.
type Tx struct {
	View
	B      *Batch
	seq    uint64  // of its writes: those of other numbers are not its own
	Order  []*cell // that it wrote, in the order of their first write
	Count  record.Counters
	Inodes map[moraine.InodeID]*record.Inode // decoded once a command, shared by its handlers
	Uses   map[TableUse]struct{}             // stripes counted for a table in this command
	Dead   []moraine.TableID                 // tables that lost a reference in this command
	// granted is the grant that the command takes stripes of.
	Granted *record.Grant
	Usage   usageSet
	// opened are the sealed inodes that the command may change; openAll: all of them.
	// forced says that a person wants a tree moved or removed that holds checkpoints.
	Opened          []moraine.InodeID
	OpenAll, Forced bool
	// ignoresQuota is set by what must never fail for a quota: removals, and what the
	// leader does by itself.
	IgnoresQuota bool

	// now is the wall time of the command in nanoseconds, clamped to rise.
	Now int64
	// index is the log index of the entry.
	Index      uint64
	Caller     *statepb.Caller
	Scope      Scope
	SettleTime uint64 // milliseconds; 0 is the default
	// session is the session of the request, nil where it names none.
	Session *record.Session

	Touched []Touch
	Events  Events
	// read are the inodes that the command looked at, whatever became of it.
	Read []moraine.InodeID
	// repeated says that the answer is an earlier one.
	Repeated bool
	// met is the hold of another session that the command met; holdErr why it
	// could not be told.
	Met     record.Hold
	HoldErr error
}

// Begin returns the transaction of the next command. It takes over the memory of
// the one before, but for what that one's Result has.
func (b *Batch) Begin() *Tx {
	t := b.t
	if t == nil {
		t = &Tx{}
		b.t = t
	}
	clear(t.Inodes)
	b.seq++
	*t = Tx{B: b, seq: b.seq, Count: b.Count, Index: b.index, Order: t.Order[:0], Inodes: t.Inodes, Usage: t.Usage}
	t.Usage.Reset()
	t.View = View{R: t, K: b.k}
	return t
}

// Reset throws away what the command wrote so far.
func (t *Tx) Reset() {
	t.B.seq++
	t.seq = t.B.seq
	t.Order = t.Order[:0]
	t.Count = t.B.Count
	clear(t.Inodes)
	t.Uses = nil
	t.Dead = nil
	t.Granted = nil
	t.Usage.Reset()
	t.IgnoresQuota, t.OpenAll, t.Forced = false, false, false
	t.Opened = nil
	t.Touched = nil
	t.Events = Events{}
}

// Full reports a command past its bound.
func (t *Tx) Full() bool { return len(t.Order) > MaxCommandKeys }

// Next issues a number from a counter.
func (t *Tx) Next(c record.Counter) uint64 {
	t.Count[c]++
	return t.Count[c]
}

// NextID issues an ID: a number of this partition and incarnation.
func (t *Tx) NextID(c record.Counter) (moraine.ID, error) { return t.NextIDs(c, 1) }

// MaxCounter is the last number that an ID has room for.
const MaxCounter = 1<<40 - 1

// NextIDs issues n IDs in a row and returns the first. Where there are not as many any more
// the command is refused: a client may have used them up by asking for ever.
func (t *Tx) NextIDs(c record.Counter, n uint64) (moraine.ID, error) {
	cl, err := t.Identity()
	if err != nil {
		return 0, err
	}
	first := t.Count[c] + 1
	if first > MaxCounter || n > MaxCounter-first+1 {
		return 0, Fail(moraine.NoSpace, "issue numbers", "", "this incarnation of the metadata has no numbers left: begin another one by a backup and a restore")
	}
	t.Count[c] += n
	return moraine.MakeID(t.K.P, cl.Incarnation, first), nil
}

// ClusterTime is in milliseconds.
func (t *Tx) ClusterTime() uint64 { return t.Count[record.CClusterTime] }

// Fail makes a user-level failure: an answer, not a fault of this node.
func Fail(kind moraine.Kind, op, ref, format string, args ...any) error {
	e := &moraine.Error{Op: op, Ref: ref, Kind: kind}
	if format != "" {
		e.Err = fmt.Errorf(format, args...)
	}
	return e
}

// IsAnswer reports whether err is a user-level failure. Everything else (the
// store failed, a value does not decode, a command is unknown) must stop the
// node, since the other replicas may not have met it.
func IsAnswer(err error) bool {
	var e *moraine.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Kind {
	case moraine.Internal, moraine.Corrupt, moraine.IOError, moraine.NewerFormat:
		return false
	}
	return true
}

// Source is where the bytes of an extent are: a stripe, or an object.
type Source struct {
	Stripe moraine.StripeID
	Object moraine.ObjectID
}

// TableUse is a table that refers to a stripe or an object.
type TableUse struct {
	Source
	Table moraine.TableID
}

// Damaged turns a NotFound of what must be there into damage.
func Damaged(err error) error {
	if MoraineKind(err) != moraine.NotFound {
		return err
	}
	return &moraine.Error{Op: "apply", Kind: moraine.Corrupt, Err: fmt.Errorf("%w: a record refers to it", err)}
}

// LossChanged notes that a stripe or a file was lost, or found again.
func (t *Tx) LossChanged() { t.Count[record.CLossChanges]++ }
