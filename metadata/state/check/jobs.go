package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// jobIndexes checks that every job is in exactly the right index.
func (c *fleetChecks) jobIndexes() error {
	want := make(map[string]bool)
	ended := uint64(0)
	owned := map[moraine.SessionID]uint64{}
	err := c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil {
			return err
		}
		switch {
		case j.State == wire.JobState_JOB_STATE_PENDING:
			want[string(c.K.JobReady(uint8(j.Kind), j.After, j.Id))] = true
		case j.Live():
			want[string(c.K.JobLease(j.Until, j.Id))] = true
		default:
			want[string(c.K.JobEnded(j.Updated, j.Id))] = true
			ended++
		}
		if j.Owner != 0 {
			owned[j.Owner]++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n, _ := c.Counters(); n[record.CJobsEnded] != ended {
		c.problem("the state counts %d ended jobs, but has %d", n[record.CJobsEnded], ended)
	}
	for _, table := range []byte{record.TabJobReady, record.TabJobLease, record.TabJobEnded} {
		err := c.each(table, func(key, _ []byte) error {
			if !want[string(key)] {
				c.problem("job index %x has key %x, which belongs to no job", table, key)
			}
			delete(want, string(key))
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(want) > 0 {
		c.problem("%d jobs are missing from the indexes", len(want))
	}
	return c.ownedJobs(owned)
}

// ownedJobs checks the counts of sessions' live jobs.
func (c *fleetChecks) ownedJobs(owned map[moraine.SessionID]uint64) error {
	err := c.each(record.TabSessJobs, func(key, value []byte) error {
		id := moraine.SessionID(record.LastU64(key))
		n, err := record.DecodeOwned(value)
		if err == nil && n != owned[id] {
			c.problem("the state counts %d live jobs of session %s, which has %d", n, id, owned[id])
		}
		delete(owned, id)
		return err
	})
	for id, n := range owned {
		c.problem("the state does not count the %d live jobs of session %s", n, id)
	}
	return err
}

// adoptions checks that each live job that adopts a directory has its row, and no other.
func (c *stepChecks) adoptions() error {
	want := map[string]moraine.JobID{}
	err := c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil || !record.OfAdoption(j.Kind) || !j.Live() {
			return err
		}
		row := string(c.K.Adopt(moraine.InodeID(j.Target)))
		if want[row] != 0 {
			c.problem("jobs %s and %s adopt one directory", want[row], j.Id)
		}
		want[row] = j.Id
		return (&record.Adoption{}).Decode(j.Cursor)
	})
	if err != nil {
		return err
	}
	err = c.each(record.TabAdopt, func(key, value []byte) error {
		id, err := record.DecodeID[moraine.JobID](record.JobVersion, value, "adoption")
		if err == nil && want[string(key)] != id {
			c.problem("row %x has job %s, which does not adopt that directory now", key, id)
		}
		delete(want, string(key))
		return err
	})
	for _, j := range want {
		c.problem("job %s adopts a directory that has no row for it", j)
	}
	return err
}

// treeClones checks the rows of CLONE_TREE jobs and returns the number of these jobs. Each has a
// directory without a name.
func (c *stepChecks) treeClones() (n int, err error) {
	live := make(map[moraine.JobID]bool)
	err = c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil || j.Kind != wire.JobKind_JOB_KIND_CLONE_TREE || !j.Live() {
			return err
		}
		n++
		live[j.Id] = true
		t := &record.TreeClone{}
		if err := t.Decode(j.Cursor); err != nil {
			return err
		}
		if top := c.inodes[t.Top]; top == nil || top.Typ != record.TypeDirectory || top.Parent != 0 || top.Nlink == 0 {
			c.problem("job %s clones a tree to %s, which is not a directory without a name", j.Id, t.Top)
		}
		return nil
	})
	if err != nil {
		return n, err
	}
	return n, c.each(record.TabCloneDir, func(key, value []byte) error {
		if id := moraine.JobID(record.LastU64(key[:11])); !live[id] {
			c.problem("job %s has ended, but has directories to clone", id)
		}
		row := &record.ClonedDir{}
		return row.Decode(value)
	})
}

// concats checks the rows of CONCAT jobs and returns the files that they build, which have no name
// and no owner.
func (c *nameChecks) concats() (map[moraine.InodeID]bool, error) {
	making := make(map[moraine.InodeID]bool)
	left := make(map[moraine.JobID]uint64) // number of ranges left
	var ending map[moraine.JobID]bool
	err := c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil || j.Kind != wire.JobKind_JOB_KIND_CONCAT || !j.Live() {
			return err
		}
		cursor := &record.ConcatJob{}
		if err := cursor.Decode(j.Cursor); err != nil {
			return err
		}
		i := c.inodes[moraine.InodeID(j.Target)]
		if i == nil || i.Typ != record.TypeFile || i.Nlink != 0 || i.Owner != 0 {
			c.problem("job %s creates %s, which is not a file without a name", j.Id, moraine.InodeID(j.Target))
		}
		making[moraine.InodeID(j.Target)] = true
		left[j.Id] = cursor.Ranges - cursor.Next/record.ConcatRow*record.ConcatRow // consumed ranges of the present row stay in it until the row ends
		if j.Ending != 0 {
			if ending == nil {
				ending = make(map[moraine.JobID]bool)
			}
			ending[j.Id] = true
		} else if cursor.Next == cursor.Ranges {
			left[j.Id] = 0
		}
		return nil
	})
	if err != nil {
		return making, err
	}
	have := make(map[moraine.JobID]uint64)
	err = c.each(record.TabConcatRow, func(key, value []byte) error {
		row, err := record.DecodeConcatRow(value)
		have[moraine.JobID(record.LastU64(key[:11]))] += uint64(len(row))
		return err
	})
	for id, n := range have {
		if n > left[id] || n < left[id] && !ending[id] {
			c.problem("job %s has rows with %d ranges, but %d are left to concatenate", id, n, left[id])
		}
		delete(left, id)
	}
	for id, n := range left {
		if n > 0 && !ending[id] {
			c.problem("job %s has no rows for the %d ranges that are left to concatenate", id, n)
		}
	}
	return making, err
}
