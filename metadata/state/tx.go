package state

import (
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// maxCommandKeys is the hard bound of what one command may write. Commands are
// written to stay near 1,000; one that would pass this bound fails as TooLarge
// and changes nothing.
const maxCommandKeys = 4096

// view is typed reading of one partition, from a transaction or a snapshot.
type view struct {
	r Reader
	k keys
	// seen, if not nil, gets what an answer shows.
	seen *Seen
}

// Batch applies the commands of one log entry: each is atomic by itself, and
// later ones see what earlier ones wrote. Values that several of them touch are
// read and written once. Not safe for concurrent use. A Batch whose Apply or
// Flush failed must be thrown away with everything that it wrote to its KV.
type Batch struct {
	m  *Machine
	kv KV
	// inserter is kv where it can do more, else nil.
	inserter Inserter
	k        keys
	index    uint64
	cells    map[string]*cell
	slabs    cellSlabs // that cells are taken from
	dirty    []*cell   // in the order of their first write
	count    record.Counters
	sum      record.Sum
	began    record.Sum // sum before the entry
	fresh    bool       // the store has no counters yet

	usage      map[usageKey]*usageCell
	dirtyUsage []*usageCell // in the order of their first change

	t   *tx    // of the command at work
	seq uint64 // numbers what commands wrote, and threw away
}

// Begin starts a batch for the log entry at index. It reads the counters.
func (m *Machine) Begin(kv KV, index uint64) (*Batch, error) {
	b := m.newBatch()
	b.kv, b.index = kv, index
	b.inserter, _ = kv.(Inserter)
	v, ok, err := kv.Get(m.k.meta(record.MetaCounters))
	if err != nil {
		return nil, err
	}
	if !ok {
		b.fresh = true
	} else if err := b.count.Decode(v); err != nil {
		return nil, err
	}
	v, ok, err = kv.Get(m.k.meta(record.MetaSum))
	if err != nil {
		return nil, err
	}
	if ok {
		if b.sum, err = record.DecodeSum(v); err != nil {
			return nil, err
		}
	}
	b.began = b.sum
	b.count[record.CEntries]++
	return b, nil
}

// Entries is how many log entries the state has applied, this one included.
func (b *Batch) Entries() uint64 { return b.count[record.CEntries] }

// Flush writes what the commands of the batch changed to the store, with the
// counters and the sum. The batch must not be used afterwards.
func (b *Batch) Flush() error {
	c := b.cellOf(b.k.meta(record.MetaCounters))
	c.value, c.exists, c.has, c.known = b.count.Encode(), true, true, c.known || b.fresh
	b.markDirty(c)
	if err := b.push(); err != nil {
		return err
	}
	if err := b.kv.Set(b.k.meta(record.MetaSum), b.sum.Encode()); err != nil {
		return err
	}
	b.retire()
	return nil
}

// tx is one command at work: it buffers writes, reads its own, and is merged
// into its batch when the command succeeds or thrown away when it fails, so
// that a failed command leaves nothing behind. It is a Reader.
type tx struct {
	view
	m      *Machine
	b      *Batch
	seq    uint64  // of its writes: those of other numbers are not its own
	order  []*cell // that it wrote, in the order of their first write
	count  record.Counters
	inodes map[moraine.InodeID]*record.Inode // decoded once a command, shared by its handlers
	uses   map[tableUse]struct{}             // stripes counted for a table in this command
	dead   []moraine.TableID                 // tables that lost a reference in this command
	// granted is the grant that the command takes stripes of.
	granted *record.Grant
	usage   usageSet
	// opened are the sealed inodes that the command may change; openAll: all of them.
	// forced says that a person wants a tree moved or removed that holds checkpoints.
	opened          []moraine.InodeID
	openAll, forced bool
	// ignoresQuota is set by what must never fail for a quota: removals, and what the
	// leader does by itself.
	ignoresQuota bool

	// now is the wall time of the command in nanoseconds, clamped to rise.
	now int64
	// index is the log index of the entry.
	index      uint64
	caller     *statepb.Caller
	scope      scope
	settleTime uint64 // milliseconds; 0 is the default
	// session is the session of the request, nil where it names none.
	session *record.Session

	touched []Touch
	events  Events
	// read are the inodes that the command looked at, whatever became of it.
	read []moraine.InodeID
	// repeated says that the answer is an earlier one.
	repeated bool
	// met is the hold of another session that the command met; holdErr why it
	// could not be told.
	met     record.Hold
	holdErr error
}

// begin returns the transaction of the next command. It takes over the memory of
// the one before, but for what that one's Result has.
func (b *Batch) begin() *tx {
	t := b.t
	if t == nil {
		t = &tx{}
		b.t = t
	}
	clear(t.inodes)
	b.seq++
	*t = tx{m: b.m, b: b, seq: b.seq, count: b.count, index: b.index, order: t.order[:0], inodes: t.inodes, usage: t.usage}
	t.usage.reset()
	t.view = view{r: t, k: b.k}
	return t
}

// reset throws away what the command wrote so far.
func (t *tx) reset() {
	t.b.seq++
	t.seq = t.b.seq
	t.order = t.order[:0]
	t.count = t.b.count
	clear(t.inodes)
	t.uses = nil
	t.dead = nil
	t.granted = nil
	t.usage.reset()
	t.ignoresQuota, t.openAll, t.forced = false, false, false
	t.opened = nil
	t.touched = nil
	t.events = Events{}
}

// full reports a command past its bound.
func (t *tx) full() bool { return len(t.order) > maxCommandKeys }

// next issues a number from a counter.
func (t *tx) next(c record.Counter) uint64 {
	t.count[c]++
	return t.count[c]
}

// nextID issues an ID: a number of this partition and incarnation.
func (t *tx) nextID(c record.Counter) (moraine.ID, error) { return t.nextIDs(c, 1) }

// maxCounter is the last number that an ID has room for.
const maxCounter = 1<<40 - 1

// nextIDs issues n IDs in a row and returns the first. Where there are not as many any more
// the command is refused: a client may have used them up by asking for ever.
func (t *tx) nextIDs(c record.Counter, n uint64) (moraine.ID, error) {
	cl, err := t.identity()
	if err != nil {
		return 0, err
	}
	first := t.count[c] + 1
	if first > maxCounter || n > maxCounter-first+1 {
		return 0, fail(moraine.NoSpace, "issue numbers", "", "this incarnation of the metadata has no numbers left: begin another one by a backup and a restore")
	}
	t.count[c] += n
	return moraine.MakeID(t.k.p, cl.Incarnation, first), nil
}

// clusterTime is in milliseconds.
func (t *tx) clusterTime() uint64 { return t.count[record.CClusterTime] }

// fail makes a user-level failure: an answer, not a fault of this node.
func fail(kind moraine.Kind, op, ref, format string, args ...any) error {
	e := &moraine.Error{Op: op, Ref: ref, Kind: kind}
	if format != "" {
		e.Err = fmt.Errorf(format, args...)
	}
	return e
}

// isAnswer reports whether err is a user-level failure. Everything else (the
// store failed, a value does not decode, a command is unknown) must stop the
// node, since the other replicas may not have met it.
func isAnswer(err error) bool {
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
