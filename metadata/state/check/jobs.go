package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// jobIndexes checks that every job is in exactly the right index.
func (c *checker) jobIndexes() error {
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
		c.problem("%d ended jobs are counted and %d are there", n[record.CJobsEnded], ended)
	}
	for _, table := range []byte{record.TabJobReady, record.TabJobLease, record.TabJobEnded} {
		err := c.each(table, func(key, _ []byte) error {
			if !want[string(key)] {
				c.problem("index %x of jobs has %x, which no job stands for", table, key)
			}
			delete(want, string(key))
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(want) > 0 {
		c.problem("%d jobs stand in no index", len(want))
	}
	return c.ownedJobs(owned)
}

// ownedJobs checks the counts of sessions' live jobs.
func (c *checker) ownedJobs(owned map[moraine.SessionID]uint64) error {
	err := c.each(record.TabSessJobs, func(key, value []byte) error {
		id := moraine.SessionID(record.LastU64(key))
		n, err := record.DecodeOwned(value)
		if err == nil && n != owned[id] {
			c.problem("%d live jobs are counted of session %s, and it has %d", n, id, owned[id])
		}
		delete(owned, id)
		return err
	})
	for id, n := range owned {
		c.problem("%d live jobs of session %s are not counted", n, id)
	}
	return err
}
