package state

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// usageState returns the singleton; all zero where nothing is counted.
func (v *view) usageState() (*record.UsageState, error) {
	s := &record.UsageState{}
	b, ok, err := v.r.Get(v.k.meta(record.MetaUsage))
	if err != nil || !ok {
		return s, err
	}
	return s, s.Decode(b)
}

func (t *tx) putUsageState(s *record.UsageState) { t.put(t.k.meta(record.MetaUsage), s.Encode()) }

// startCounting is done as the feature level comes to have counts. An empty
// cluster has nothing to count: from here on everything is.
func (m *Machine) startCounting(t *tx) error {
	s, err := t.usageState()
	if err != nil || s.Live != 0 || s.Building != 0 {
		return err
	}
	if t.count[record.CInodes] <= 1 {
		s.Live = 1
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
	id := s.Job
	if s.Phase == record.RecountNone {
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

func jobsReply(j *record.Job) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: &wire.JobsReply{LeaseMillis: record.JobLeaseMillis, Jobs: []*wire.Job{j.ToWire()}}}}
}

func (m *Machine) startRecount(t *tx, s *record.UsageState) (moraine.JobID, error) {
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_RECOUNT, subject: "usage of all directories", total: t.count[record.CInodes]})
	if err != nil {
		return 0, err
	}
	*s = record.UsageState{Live: s.Live, Quotas: s.Quotas, Phase: record.RecountCount, Building: 1, Job: id}
	if s.Live == 1 {
		s.Building = 2
	}
	t.putUsageState(s)
	return id, nil
}

// runRecount does one piece of a recount, of about limit records.
func (m *Machine) runRecount(t *tx, j *record.Job, limit int) (n int, finished bool, err error) {
	s, err := t.usageState()
	if err != nil {
		return 0, false, err
	}
	if s.Job != j.Id {
		return 0, false, &moraine.Error{Op: "recount", Ref: j.Id.String(), Kind: moraine.Corrupt, Err: errors.New("the state knows of another recount")}
	}
	switch s.Phase {
	case record.RecountCount:
		n, err = t.recountInodes(s, limit)
	case record.RecountCompare:
		err = t.compareColumns(s, limit)
	case record.RecountDrop:
		err = t.dropColumn(s, limit)
	}
	if err != nil {
		return 0, false, err
	}
	if finished = s.Phase == record.RecountDrop && s.Dropping == 0; finished {
		j.Err = s.Verdict()
		*s = record.UsageState{Live: s.Live, Quotas: s.Quotas}
	}
	t.putUsageState(s)
	return n, finished, nil
}

// recountInodes counts the next inodes. Each costs its path, so that the piece
// ends when it has touched limit counts or gone limit steps.
func (t *tx) recountInodes(s *record.UsageState, limit int) (n int, err error) {
	type one struct {
		id moraine.InodeID
		seat
	}
	var todo []one
	var bad error
	limit = max(limit/2, 1)
	err = t.Scan(t.k.inode(s.Counted+1), prefixEnd(t.k.table(record.TabInode)), func(key, value []byte) bool {
		o := one{id: moraine.InodeID(record.LastU64(key))}
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
	w := usageWalk{t: t, column: s.Building}
	for _, o := range todo {
		if n > 0 && len(t.usage.list) >= limit {
			return n, nil
		}
		if err := w.count(o.parent, o.own(), true); err != nil {
			return n, err
		}
		s.Counted = o.id
		n++
	}
	if len(todo) < limit {
		s.Counted = ^moraine.InodeID(0) // what comes now counts as it is made
		s.Phase = record.RecountCompare
	}
	return n, nil
}

// compareColumns holds the next directories of both columns against each other;
// behind the last one the new column comes into force.
func (t *tx) compareColumns(s *record.UsageState, limit int) error {
	limit = max(limit/2, 1)
	last := s.Compared
	var ids []moraine.InodeID
	next := ^moraine.InodeID(0) // up to here both columns have been read
	for _, column := range [2]uint8{s.Live, s.Building} {
		if s.Live == 0 {
			break // the first recount: there is nothing to compare with
		}
		n := 0
		err := t.Scan(t.k.usage(column, last+1), prefixEnd(t.k.usageColumn(column)), func(key, _ []byte) bool {
			id := moraine.InodeID(record.LastU64(key))
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
		was, err := t.usageNow(usageKey{s.Live, id})
		if err != nil {
			return err
		}
		now, err := t.usageNow(usageKey{s.Building, id})
		if err != nil {
			return err
		}
		if was == now {
			continue
		}
		if s.Wrong++; s.Wrong == 1 {
			s.First, s.Was, s.Now = id, was, now
		}
	}
	s.Compared = next
	if next == ^moraine.InodeID(0) {
		s.Phase, s.Dropping = record.RecountDrop, s.Live
		s.Live, s.Building = s.Building, 0
	}
	return nil
}

// dropColumn takes the next counts of the old column away.
func (t *tx) dropColumn(s *record.UsageState, limit int) error {
	if s.Dropping == 0 {
		return nil
	}
	limit = max(limit, 1)
	keys, err := t.keysUnder(t.k.usageColumn(s.Dropping), limit)
	if err != nil {
		return err
	}
	for _, key := range keys {
		k := usageKey{s.Dropping, moraine.InodeID(binary.BigEndian.Uint64(key[4:]))}
		now, err := t.usageNow(k)
		if err != nil {
			return err
		}
		if err := t.countUsage(k, now.Neg(), true); err != nil {
			return err
		}
	}
	if len(keys) < limit {
		s.Dropping = 0
	}
	return nil
}
