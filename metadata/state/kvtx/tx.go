package kvtx

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/keys"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxCommandKeys is the largest number of keys that one command may write. Handlers aim for about
// 1,000. A command past this bound fails with TooLarge and changes nothing.
const MaxCommandKeys = 4096

// View is typed read access to one partition, over a transaction or a snapshot.
type View struct {
	R Reader
	K keys.Keys
	// Seen, if not nil, collects the cacheable items that an answer shows.
	Seen *Seen
	// Meeting, if not nil, collects the delegated directories that a request reads. It is nil for
	// the leader's own commands and for servers, which do not wait for delegations.
	Meeting *Meeting
}

// Get implements Reader.
func (v *View) Get(key []byte) ([]byte, bool, error) { return v.R.Get(key) }

// Scan implements Reader.
func (v *View) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	return v.R.Scan(lo, hi, fn)
}

// Batch applies the commands of one log entry. Each command is atomic, and later ones see the
// writes of earlier ones. A value that several commands use is read and written once. A Batch is
// not safe for concurrent use. If Apply or Flush fails, the caller must discard the Batch and
// everything that it wrote to its KV.
type Batch struct {
	Space *Space
	kv    KV
	// inserter is kv if it implements Inserter, otherwise nil.
	inserter Inserter
	k        keys.Keys
	index    uint64
	cells    map[string]*cell
	slabs    cellSlabs // source of the cells
	dirty    []*cell   // in the order of their first write
	Count    record.Counters
	sum      record.Sum
	Began    record.Sum // sum before the entry
	fresh    bool       // the store has no counters yet

	usage      map[UsageKey]*usageCell
	dirtyUsage []*usageCell // in the order of their first change

	t   *Tx    // the transaction that Begin reuses
	seq uint64 // number of the last transaction, successful or not
}

// Space is one partition of a store: its keys, and what one batch passes on to the next.
type Space struct {
	K     keys.Keys
	Hints grantHints            // saves searches; no result depends on it
	spare atomic.Pointer[Batch] // a flushed batch, kept for its memory
	// Level is the newest feature level that this build supports.
	Level uint64
	// InlineLimit bounds the bytes of small files in the state. Each replica has the same.
	InlineLimit uint64
	// JobEnded updates the target of a job when the job ends, for example a file or a tree.
	JobEnded func(t *Tx, j *record.Job, state wire.JobState, reason string) error
}

// MaxInlineBytes bounds the content of small files in the state, in bytes.
const MaxInlineBytes = 1 << 30

// NewSpace returns the space of partition p.
func NewSpace(p moraine.Partition) *Space {
	return &Space{K: keys.Of(p), Level: moraine.FeatureLevel, InlineLimit: MaxInlineBytes}
}

// View returns a view of the partition over r.
func (s *Space) View(r Reader) *View { return &View{R: r, K: s.K} }

// BeginBatch starts a batch for the log entry at index. It reads the counters from kv.
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

// Flush writes the batch's changes to the store, with the counters and the sum. The batch must not
// be used afterwards.
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

// Tx is the transaction of one command. It is a Reader that sees its own writes. When the command
// succeeds, the batch merges the writes; when it fails, they are discarded.
type Tx struct {
	View
	B      *Batch
	seq    uint64  // marks its own writes; a cell with another number is not its own
	Order  []*cell // cells that it wrote, in the order of their first write
	Count  record.Counters
	Inodes map[moraine.InodeID]*record.Inode // decoded once per command, shared by its handlers
	Uses   map[TableUse]struct{}             // stripes counted for a table in this command
	Dead   []moraine.TableID                 // tables that lost a reference in this command
	// Granted is the grant from which the command takes stripe numbers.
	Granted *record.Grant
	Usage   usageSet
	// Opened are the sealed inodes that the command may change; OpenAll means all of them. Forced
	// says that an administrator moves or removes a tree although it has checkpoints.
	Opened          []moraine.InodeID
	OpenAll, Forced bool
	// IgnoresQuota is set for commands that must never fail for a quota: removals, and the leader's
	// own work.
	IgnoresQuota bool

	// Now is the wall time of the command in nanoseconds. It never decreases from one command to
	// the next.
	Now int64
	// Index is the log index of the entry.
	Index      uint64
	Caller     *statepb.Caller
	Scope      Scope
	SettleTime uint64 // milliseconds; 0 is the default
	// Session is the request's session, or nil if it names none.
	Session *record.Session

	Touched []Touch
	Events  Events
	// Read are the inodes that the command read, whether it succeeded or not.
	Read    []moraine.InodeID
	meeting Meeting
	// Met are the delegated directories that the command met: it has no effect and no answer.
	Met []Met
	// Repeated says that the response is the kept answer of an earlier command.
	Repeated bool
	// Spent is how many keys earlier changes of its batch wrote beyond what a batch may.
	Spent int
	// Answered says that a session has answered its program that the content is written.
	Answered bool
}

// Begin returns the transaction of the next command. It reuses the memory of the previous one,
// except what that command's Result refers to.
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

// Reset discards the command's writes so far.
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

// Full reports whether the command wrote more than MaxCommandKeys keys.
func (t *Tx) Full() bool { return len(t.Order) > MaxCommandKeys }

// Next issues the next number of a counter.
func (t *Tx) Next(c record.Counter) uint64 {
	t.Count[c]++
	return t.Count[c]
}

// NextID issues an ID: a number of this partition and incarnation.
func (t *Tx) NextID(c record.Counter) (moraine.ID, error) { return t.NextIDs(c, 1) }

// MaxCounter is the last number that an ID has room for.
const MaxCounter = 1<<40 - 1

// NextIDs issues n consecutive IDs and returns the first. If fewer are left, the command fails: a
// client may have used them up by requesting them without end.
func (t *Tx) NextIDs(c record.Counter, n uint64) (moraine.ID, error) {
	cl, err := t.Identity()
	if err != nil {
		return 0, err
	}
	first := t.Count[c] + 1
	if first > MaxCounter || n > MaxCounter-first+1 {
		return 0, Fail(moraine.NoSpace, "issue numbers", "", "incarnation %d of the metadata has issued its last number: back up the metadata and restore it, which begins a new incarnation", cl.Incarnation)
	}
	t.Count[c] += n
	return moraine.MakeID(t.K.P, cl.Incarnation, first), nil
}

// ClusterTime returns the cluster time in milliseconds.
func (t *Tx) ClusterTime() uint64 { return t.Count[record.CClusterTime] }

// Fail returns a user-level failure: an answer to the client, not a fault of this node.
func Fail(kind moraine.Kind, op, ref, format string, args ...any) error {
	e := &moraine.Error{Op: op, Ref: ref, Kind: kind}
	if format != "" {
		e.Err = fmt.Errorf(format, args...)
	}
	return e
}

// Corrupt returns the error that stops the node: the records contradict each other.
func Corrupt(op, ref, format string, args ...any) error {
	return &moraine.Error{Op: op, Ref: ref, Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
}

// IsAnswer reports whether err is a user-level failure. Any other error must
// stop the node, since the other replicas may not have met it. It is a failed
// store, a value that does not decode, or an unknown command.
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

// Source is where the bytes of an extent are: a stripe, an object, or a record with bytes.
type Source struct {
	Stripe moraine.StripeID
	Object moraine.ObjectID
	Inline moraine.InlineID
}

// TableUse says that a table refers to a source.
type TableUse struct {
	Source
	Table moraine.TableID
}

// Damaged turns NotFound, for a record that must exist, into damage.
func Damaged(err error) error {
	if MoraineKind(err) != moraine.NotFound {
		return err
	}
	return &moraine.Error{Op: "apply", Kind: moraine.Corrupt, Err: fmt.Errorf("a record refers to something that is missing: %w", err)}
}

// LossChanged counts that a stripe or a file became lost, or readable again.
func (t *Tx) LossChanged() { t.Count[record.CLossChanges]++ }
