package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A recount counts everything anew, in a column of its own, while the cluster
// works. It goes through the inodes in the order of their numbers; numbers only
// rise, so that what is made meanwhile comes later. What a command does to an
// inode that the recount has passed it does to both columns, and a directory
// that moves takes with it, in each, what that one has counted below it so far:
// so at every moment the new column is exactly the counts of the tree as it is,
// of the inodes up to the cursor. At the end the columns are held against each
// other, and the new one comes into force in one entry.
//
// The first one is started by the command that raises the feature level of a
// cluster with content; it has no old column.

// Phases of a recount.
const (
	recountNone    = iota
	recountCount   // inodes up to counted are in the new column
	recountCompare // directories up to compared have been held against the old one
	recountDrop    // dropping is being taken away
)

// usageState is the singleton that says which counts are in force.
type usageState struct {
	live     uint8  // column in force; 0: none
	quotas   uint64 // directories that have one
	phase    uint8
	building uint8 // column of the recount; 0 where none is under way
	dropping uint8 // column that nothing reads any more
	job      moraine.JobID
	counted  moraine.InodeID // in building: all up to here
	compared moraine.InodeID
	wrong    uint64 // directories whose counts differ
	// The first of them: what was in force, and what is right.
	first    moraine.InodeID
	was, now usage
}

const usageStateVersion = 1

func (s *usageState) encode() []byte {
	b := putUvarint([]byte{usageStateVersion, s.live}, s.quotas)
	b = append(b, s.phase)
	if s.phase == recountNone {
		return b
	}
	b = append(b, s.building, s.dropping)
	b = putFixed64(b, uint64(s.job))
	b = putFixed64(b, uint64(s.counted))
	b = putFixed64(b, uint64(s.compared))
	b = putUvarint(b, s.wrong)
	b = putFixed64(b, uint64(s.first))
	for _, u := range []usage{s.was, s.now} {
		b = putVarint(putVarint(putVarint(b, u.bytes), u.inodes), u.steps)
	}
	return b
}

func (s *usageState) decode(b []byte) error {
	d := dec{b: b}
	d.version(usageStateVersion)
	s.live = d.byte()
	s.quotas = d.uvarint()
	if s.phase = d.byte(); s.phase > recountDrop {
		d.fail(fmt.Errorf("phase %d", s.phase))
	}
	if s.phase != recountNone {
		s.building, s.dropping = d.byte(), d.byte()
		s.job = moraine.JobID(d.fixed64())
		s.counted, s.compared = moraine.InodeID(d.fixed64()), moraine.InodeID(d.fixed64())
		s.wrong = d.uvarint()
		s.first = moraine.InodeID(d.fixed64())
		s.was = usage{d.varint(), d.varint(), d.varint()}
		s.now = usage{d.varint(), d.varint(), d.varint()}
	}
	if d.err == nil && (s.live > 2 || s.building > 2 || s.dropping > 2) {
		d.fail(errors.New("there are two columns"))
	}
	return d.end("state of the counts")
}

// usageState returns the singleton; all zero where nothing is counted.
func (v *view) usageState() (*usageState, error) {
	s := &usageState{}
	b, ok, err := v.r.Get(v.k.meta(metaUsage))
	if err != nil || !ok {
		return s, err
	}
	return s, s.decode(b)
}

func (t *tx) putUsageState(s *usageState) { t.put(t.k.meta(metaUsage), s.encode()) }

// startCounting is done as the feature level comes to have counts. An empty
// cluster has nothing to count: from here on everything is.
func (m *Machine) startCounting(t *tx) error {
	s, err := t.usageState()
	if err != nil || s.live != 0 || s.building != 0 {
		return err
	}
	if t.count[cInodes] <= 1 {
		s.live = 1
		t.putUsageState(s)
		return nil
	}
	_, err = m.startRecount(t, s)
	return err
}

// beginRecount starts a recount, or finds the one under way.
func (m *Machine) beginRecount(t *tx) (*wire.MetaResponse, error) {
	ok, err := t.speaks(LevelUsage)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fail(moraine.Unavailable, "recount", "", "nothing is counted at the cluster's feature level")
	}
	s, err := t.usageState()
	if err != nil {
		return nil, err
	}
	id := s.job
	if s.phase == recountNone {
		if id, err = m.startRecount(t, s); err != nil {
			return nil, err
		}
	}
	j, err := t.job(id)
	if err == nil && j == nil {
		err = &moraine.Error{Op: "recount", Ref: id.String(), Kind: moraine.Corrupt}
	}
	if err != nil {
		return nil, err
	}
	return jobsReply(j), nil
}

func jobsReply(j *job) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: &wire.JobsReply{LeaseMillis: JobLeaseMillis, Jobs: []*wire.Job{j.toWire()}}}}
}

func (m *Machine) startRecount(t *tx, s *usageState) (moraine.JobID, error) {
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_RECOUNT, subject: "usage of all directories", total: t.count[cInodes]})
	if err != nil {
		return 0, err
	}
	*s = usageState{live: s.live, quotas: s.quotas, phase: recountCount, building: 1, job: id}
	if s.live == 1 {
		s.building = 2
	}
	t.putUsageState(s)
	return id, nil
}

// runRecount does one piece of a recount, of about limit records.
func (m *Machine) runRecount(t *tx, j *job, limit int) (n int, finished bool, err error) {
	s, err := t.usageState()
	if err != nil {
		return 0, false, err
	}
	if s.job != j.id {
		return 0, false, &moraine.Error{Op: "recount", Ref: j.id.String(), Kind: moraine.Corrupt, Err: errors.New("the state knows of another recount")}
	}
	switch s.phase {
	case recountCount:
		n, err = t.recountInodes(s, limit)
	case recountCompare:
		err = t.compareColumns(s, limit)
	case recountDrop:
		err = t.dropColumn(s, limit)
	}
	if err != nil {
		return 0, false, err
	}
	if finished = s.phase == recountDrop && s.dropping == 0; finished {
		j.err = s.verdict()
		*s = usageState{live: s.live, quotas: s.quotas}
	}
	t.putUsageState(s)
	return n, finished, nil
}

// verdict says what a recount found, where something was wrong.
func (s *usageState) verdict() string {
	if s.wrong == 0 {
		return ""
	}
	text := fmt.Sprintf("the counts of %d directories were wrong and have been put right; of inode %s: %d bytes and %d inodes, in truth %d and %d",
		s.wrong, s.first, s.was.bytes, s.was.inodes, s.now.bytes, s.now.inodes)
	if s.was.steps != s.now.steps {
		text += fmt.Sprintf("; %d checkpoints, in truth %d", s.was.steps, s.now.steps)
	}
	return text
}

// recountInodes counts the next inodes. Each costs its path, so that the piece
// ends when it has touched limit counts or gone limit steps.
func (t *tx) recountInodes(s *usageState, limit int) (n int, err error) {
	type one struct {
		id moraine.InodeID
		seat
	}
	var todo []one
	var bad error
	limit = max(limit/2, 1)
	err = t.Scan(t.k.inode(s.counted+1), prefixEnd(t.k.table(tabInode)), func(key, value []byte) bool {
		o := one{id: moraine.InodeID(lastU64(key))}
		if o.seat, bad = seatOf(value); bad != nil {
			bad = badSeat(o.id, bad)
			return false
		}
		todo = append(todo, o)
		return len(todo) < limit
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return 0, err
	}
	w := usageWalk{t: t, column: s.building}
	for _, o := range todo {
		if n > 0 && len(t.usage.list) >= limit {
			return n, nil
		}
		if err := w.count(o.parent, o.own(), true); err != nil {
			return n, err
		}
		s.counted = o.id
		n++
	}
	if len(todo) < limit {
		s.counted = ^moraine.InodeID(0) // what comes now counts as it is made
		s.phase = recountCompare
	}
	return n, nil
}

// compareColumns holds the next directories of both columns against each other;
// behind the last one the new column comes into force.
func (t *tx) compareColumns(s *usageState, limit int) error {
	limit = max(limit/2, 1)
	last := s.compared
	var ids []moraine.InodeID
	next := ^moraine.InodeID(0) // up to here both columns have been read
	for _, column := range [2]uint8{s.live, s.building} {
		if s.live == 0 {
			break // the first recount: there is nothing to compare with
		}
		n := 0
		err := t.Scan(t.k.usage(column, last+1), prefixEnd(t.k.usageColumn(column)), func(key, _ []byte) bool {
			id := moraine.InodeID(lastU64(key))
			if n == limit {
				next = min(next, id-1)
				return false
			}
			ids = append(ids, id)
			n++
			return true
		})
		if err != nil {
			return err
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if id > next {
			break
		}
		was, err := t.usageNow(usageKey{s.live, id})
		if err != nil {
			return err
		}
		now, err := t.usageNow(usageKey{s.building, id})
		if err != nil {
			return err
		}
		if was == now {
			continue
		}
		if s.wrong++; s.wrong == 1 {
			s.first, s.was, s.now = id, was, now
		}
	}
	s.compared = next
	if next == ^moraine.InodeID(0) {
		s.phase, s.dropping = recountDrop, s.live
		s.live, s.building = s.building, 0
	}
	return nil
}

// dropColumn takes the next counts of the old column away.
func (t *tx) dropColumn(s *usageState, limit int) error {
	if s.dropping == 0 {
		return nil
	}
	limit = max(limit, 1)
	keys, err := t.keysUnder(t.k.usageColumn(s.dropping), limit)
	if err != nil {
		return err
	}
	for _, key := range keys {
		k := usageKey{s.dropping, moraine.InodeID(binary.BigEndian.Uint64(key[4:]))}
		now, err := t.usageNow(k)
		if err != nil {
			return err
		}
		if err := t.countUsage(k, now.neg(), true); err != nil {
			return err
		}
	}
	if len(keys) < limit {
		s.dropping = 0
	}
	return nil
}
