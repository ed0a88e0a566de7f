package state

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/morainefs/moraine"
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

// cell is what a batch knows of one key.
type cell struct {
	value  []byte // nil where there is none; owned by the cell
	exists bool
	// The pair as the store has it, for the sum. stored is meaningful only
	// where known is set.
	stored       []byte
	storedExists bool
	known        bool
	dirty        bool
}

// Batch applies the commands of one log entry: each is atomic by itself, and
// later ones see what earlier ones wrote. Values that several of them touch are
// read and written once. Not safe for concurrent use. A Batch whose Apply or
// Flush failed must be thrown away with everything that it wrote to its KV.
type Batch struct {
	m     *Machine
	kv    KV
	k     keys
	index uint64
	cells map[string]*cell
	dirty []string // keys of dirty cells, in the order of their first write
	count counters
	sum   Sum
	began Sum  // sum before the entry
	fresh bool // the store has no counters yet

	usage      map[usageKey]*usageCell
	dirtyUsage []*usageCell // in the order of their first change
}

// Begin starts a batch for the log entry at index. It reads the counters.
func (m *Machine) Begin(kv KV, index uint64) (*Batch, error) {
	b := &Batch{m: m, kv: kv, k: m.k, index: index, cells: make(map[string]*cell)}
	v, ok, err := kv.Get(m.k.meta(metaCounters))
	if err != nil {
		return nil, err
	}
	if !ok {
		b.fresh = true
	} else if err := b.count.decode(v); err != nil {
		return nil, err
	}
	v, ok, err = kv.Get(m.k.meta(metaSum))
	if err != nil {
		return nil, err
	}
	if ok {
		if b.sum, err = decodeSum(v); err != nil {
			return nil, err
		}
	}
	b.began = b.sum
	b.count[cEntries]++
	return b, nil
}

// Entries is how many log entries the state has applied, this one included.
func (b *Batch) Entries() uint64 { return b.count[cEntries] }

// load returns the cell of key, read from the store if need be.
func (b *Batch) load(key []byte) (*cell, error) {
	if c := b.cells[string(key)]; c != nil {
		return c, nil
	}
	v, ok, err := b.kv.Get(key)
	if err != nil {
		return nil, err
	}
	c := &cell{exists: ok, storedExists: ok, known: true}
	if ok {
		c.value = slices.Clone(v)
		c.stored = c.value
	}
	b.cells[string(key)] = c
	return c, nil
}

// merge takes over what a command wrote.
func (b *Batch) merge(t *tx) {
	for _, key := range t.order {
		w := t.writes[key]
		c := b.cells[key]
		if c == nil {
			c = &cell{known: w.fresh}
			b.cells[key] = c
		}
		c.value, c.exists = w.value, w.exists
		if !c.dirty {
			c.dirty = true
			b.dirty = append(b.dirty, key)
		}
	}
	b.count = t.count
	b.mergeUsage(t)
}

// push writes the dirty cells to the store and keeps the sum. It leaves the
// counters and the sum itself to Flush.
func (b *Batch) push() error {
	b.pushUsage()
	for _, key := range b.dirty {
		c := b.cells[key]
		k := []byte(key)
		if !c.known {
			v, ok, err := b.kv.Get(k)
			if err != nil {
				return err
			}
			c.storedExists, c.known = ok, true
			if ok {
				c.stored = slices.Clone(v)
			}
		}
		if err := b.write(k, c); err != nil {
			return err
		}
		c.stored, c.storedExists, c.dirty = c.value, c.exists, false
	}
	b.dirty = b.dirty[:0]
	return nil
}

func (b *Batch) write(key []byte, c *cell) error {
	switch {
	case c.exists && c.storedExists && string(c.value) == string(c.stored):
		return nil
	case c.exists:
		if c.storedExists {
			b.sum.remove(key, c.stored)
		}
		b.sum.add(key, c.value)
		return b.kv.Set(key, c.value)
	case c.storedExists:
		b.sum.remove(key, c.stored)
		return b.kv.Delete(key)
	}
	return nil
}

// Flush writes what the commands of the batch changed to the store, with the
// counters and the sum. The batch must not be used afterwards.
func (b *Batch) Flush() error {
	ck := b.k.meta(metaCounters)
	c := &cell{value: b.count.encode(), exists: true, known: b.fresh}
	b.cells[string(ck)] = c
	b.dirty = append(b.dirty, string(ck))
	if err := b.push(); err != nil {
		return err
	}
	return b.kv.Set(b.k.meta(metaSum), b.sum.encode())
}

// write is what a command wants a key to be.
type write struct {
	value  []byte
	exists bool
	fresh  bool // the caller knows that the store has no such key
}

// tx is one command at work: it buffers writes, reads its own, and is merged
// into its batch when the command succeeds or thrown away when it fails, so
// that a failed command leaves nothing behind. It is a Reader.
type tx struct {
	view
	m      *Machine
	b      *Batch
	writes map[string]write
	order  []string
	count  counters
	inodes map[moraine.InodeID]*inode // decoded once a command, shared by its handlers
	uses   map[tableUse]struct{}      // stripes counted for a table in this command
	dead   []moraine.TableID          // tables that lost a reference in this command
	usage  usageSet
	// anyway is set by what must never fail for a quota: removals, and what the
	// leader does by itself.
	anyway bool

	// now is the wall time of the command in nanoseconds, clamped to rise.
	now int64
	// index is the log index of the entry.
	index      uint64
	caller     *statepb.Caller
	scope      scope
	settleTime uint64 // milliseconds; 0 is the default
	// session is the session of the request, nil where it names none.
	session *session

	touched []Touch
	events  Events
	// read are the inodes that the command looked at, whatever became of it.
	read []moraine.InodeID
	// repeated says that the answer is an earlier one.
	repeated bool
}

func (b *Batch) begin() *tx {
	t := &tx{m: b.m, b: b, writes: make(map[string]write), count: b.count, index: b.index}
	t.view = view{r: t, k: b.k}
	return t
}

// reset throws away what the command wrote so far.
func (t *tx) reset() {
	clear(t.writes)
	t.order = t.order[:0]
	t.count = t.b.count
	t.inodes = nil
	t.uses = nil
	t.dead = nil
	t.usage.reset()
	t.anyway = false
	t.touched = nil
	t.events = Events{}
}

// Get implements Reader: the command's own writes, then those of the commands
// before it in the entry, then the store.
func (t *tx) Get(key []byte) ([]byte, bool, error) {
	if w, ok := t.writes[string(key)]; ok {
		return w.value, w.exists, nil
	}
	c, err := t.b.load(key)
	if err != nil {
		return nil, false, err
	}
	return c.value, c.exists, nil
}

// Scan implements Reader. fn may get and put.
func (t *tx) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	if err := t.b.push(); err != nil {
		return err
	}
	var own []string
	for key := range t.writes {
		if key >= string(lo) && (hi == nil || key < string(hi)) {
			own = append(own, key)
		}
	}
	sort.Strings(own)
	more := true
	// visit hands out own writes below limit (all of them where limit is nil).
	visit := func(limit []byte) {
		for more && len(own) > 0 && (limit == nil || own[0] < string(limit)) {
			w := t.writes[own[0]]
			if w.exists {
				more = fn([]byte(own[0]), w.value)
			}
			own = own[1:]
		}
	}
	err := t.b.kv.Scan(lo, hi, func(key, value []byte) bool {
		visit(key)
		if more && len(own) > 0 && own[0] == string(key) {
			w := t.writes[own[0]]
			own = own[1:]
			if w.exists {
				more = fn(key, w.value)
			}
			return more
		}
		if more {
			more = fn(key, value)
		}
		return more
	})
	if err != nil {
		return err
	}
	visit(nil)
	return nil
}

func (t *tx) set(key []byte, w write) {
	if old, ok := t.writes[string(key)]; ok {
		w.fresh = old.fresh // what the store has is not changed by an earlier write of this command
	} else {
		t.order = append(t.order, string(key))
	}
	t.writes[string(key)] = w
}

// put writes a pair. It takes ownership of value.
func (t *tx) put(key, value []byte) { t.set(key, write{value: value, exists: true}) }

// insert is put of a key that the store cannot have, such as one that names a
// new number: it spares the read that keeping the sum would cost.
func (t *tx) insert(key, value []byte) {
	t.set(key, write{value: value, exists: true, fresh: true})
}

// del removes a pair; removing what is not there is fine.
func (t *tx) del(key []byte) { t.set(key, write{}) }

// full reports a command past its bound.
func (t *tx) full() bool { return len(t.order) > maxCommandKeys }

// next issues a number from a counter.
func (t *tx) next(c counter) uint64 {
	t.count[c]++
	return t.count[c]
}

// nextID issues an ID: a number of this partition and incarnation.
func (t *tx) nextID(c counter) (moraine.ID, error) {
	cl, err := t.cluster()
	if err != nil {
		return 0, err
	}
	return moraine.MakeID(t.k.p, cl.incarnation, t.next(c)), nil
}

// clusterTime is in milliseconds.
func (t *tx) clusterTime() uint64 { return t.count[cClusterTime] }

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
