package usage

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// UsageState returns the state of usage counts.
func UsageState(v *kvtx.View) (*record.UsageState, error) {
	s := &record.UsageState{}
	b, ok, err := v.R.Get(v.K.Meta(record.MetaUsage))
	if err != nil || !ok {
		return s, err
	}
	return s, s.Decode(b)
}

// putUsageState writes the state of usage counts.
func putUsageState(t *kvtx.Tx, s *record.UsageState) { t.Put(t.K.Meta(record.MetaUsage), s.Encode()) }

// StartCounting starts the counts of a new cluster.
func StartCounting(t *kvtx.Tx) { putUsageState(t, &record.UsageState{Live: 1}) }

// BeginRecount starts a recount, or finds the one in progress.
func BeginRecount(t *kvtx.Tx) (*wire.MetaResponse, error) {
	s, err := UsageState(&t.View)
	if err != nil {
		return nil, err
	}
	id := s.Job
	if s.Phase == record.RecountNone {
		if id, err = startRecount(t, s); err != nil {
			return nil, err
		}
	}
	j, err := jobs.Job(&t.View, id)
	if err == nil && j == nil {
		err = kvtx.Corrupt("recount", id.String(), "the state names the job, which has no record")
	}
	if err != nil {
		return nil, err
	}
	return JobsReply(j), nil
}

// JobsReply answers one job.
func JobsReply(j *record.Job) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: &wire.JobsReply{LeaseMillis: record.JobLeaseMillis, Jobs: []*wire.Job{j.ToWire()}}}}
}

// startRecount creates the job and the new column of a recount.
func startRecount(t *kvtx.Tx, s *record.UsageState) (moraine.JobID, error) {
	id, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_RECOUNT, Subject: "usage of all directories", Total: t.Count[record.CInodes]})
	if err != nil {
		return 0, err
	}
	*s = record.UsageState{Live: s.Live, Quotas: s.Quotas, Phase: record.RecountCount, Building: 1, Job: id}
	if s.Live == 1 {
		s.Building = 2
	}
	putUsageState(t, s)
	return id, nil
}

// RunRecount does one piece of a recount, of about limit records.
func RunRecount(t *kvtx.Tx, j *record.Job, limit int) (n int, finished bool, err error) {
	s, err := UsageState(&t.View)
	if err != nil {
		return 0, false, err
	}
	if s.Job != j.Id {
		return 0, false, &moraine.Error{Op: "recount", Ref: j.Id.String(), Kind: moraine.Corrupt, Err: errors.New("the state names another recount job")}
	}
	switch s.Phase {
	case record.RecountCount:
		n, err = recountInodes(t, s, limit)
	case record.RecountCompare:
		err = compareColumns(t, s, limit)
	case record.RecountDrop:
		err = dropColumn(t, s, limit)
	}
	if err != nil {
		return 0, false, err
	}
	if finished = s.Phase == record.RecountDrop && s.Dropping == 0; finished {
		j.Err = s.Verdict()
		*s = record.UsageState{Live: s.Live, Quotas: s.Quotas}
	}
	putUsageState(t, s)
	return n, finished, nil
}

// recountInodes counts the next inodes. An inode with a longer path costs more. So the piece of the
// job ends after limit changed counts, or after it has walked over limit directories.
func recountInodes(t *kvtx.Tx, s *record.UsageState, limit int) (n int, err error) {
	type one struct {
		Id moraine.InodeID
		seat
	}
	var todo []one
	limit = max(limit/2, 1)
	err = t.Each(t.K.Inode(s.Counted+1), kvtx.PrefixEnd(t.K.Table(record.TabInode)), func(key, value []byte) (bool, error) {
		id := moraine.InodeID(record.LastU64(key))
		at, err := seatOf(value)
		if err != nil {
			return false, badSeat(id, err)
		}
		todo = append(todo, one{id, at})
		return len(todo) < limit, nil
	})
	if err != nil {
		return 0, err
	}
	w := usageWalk{t: t, column: s.Building}
	for _, o := range todo {
		if n > 0 && len(t.Usage.List) >= limit {
			return n, nil
		}
		if err := w.count(o.parent, o.own(), true); err != nil {
			return n, err
		}
		s.Counted = o.Id
		n++
	}
	if len(todo) < limit {
		s.Counted = ^moraine.InodeID(0) // later inodes are counted when they are created
		s.Phase = record.RecountCompare
	}
	return n, nil
}

// compareColumns compares the next directories in both columns. After the last one the new column
// comes into force.
func compareColumns(t *kvtx.Tx, s *record.UsageState, limit int) error {
	limit = max(limit/2, 1)
	last := s.Compared
	var ids []moraine.InodeID
	next := ^moraine.InodeID(0) // both columns have been read up to here
	for _, column := range [2]uint8{s.Live, s.Building} {
		n := 0
		err := t.Scan(t.K.Usage(column, last+1), kvtx.PrefixEnd(t.K.UsageColumn(column)), func(key, _ []byte) bool {
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
		was, err := t.UsageNow(kvtx.UsageKey{Column: s.Live, Dir: id})
		if err != nil {
			return err
		}
		now, err := t.UsageNow(kvtx.UsageKey{Column: s.Building, Dir: id})
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

// dropColumn deletes the next counts of the old column.
func dropColumn(t *kvtx.Tx, s *record.UsageState, limit int) error {
	limit = max(limit, 1)
	keys, err := t.KeysUnder(t.K.UsageColumn(s.Dropping), limit)
	if err != nil {
		return err
	}
	for _, key := range keys {
		k := kvtx.UsageKey{Column: s.Dropping, Dir: moraine.InodeID(binary.BigEndian.Uint64(key[4:]))}
		now, err := t.UsageNow(k)
		if err != nil {
			return err
		}
		if err := t.CountUsage(k, now.Neg(), true); err != nil {
			return err
		}
	}
	if len(keys) < limit {
		s.Dropping = 0
	}
	return nil
}
