package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// jobIndexes checks that every job stands in the one index that it should.
func (c *checker) jobIndexes() error {
	want := make(map[string]bool)
	ended := uint64(0)
	owned := map[moraine.SessionID]uint64{}
	err := c.each(tabJob, func(key, value []byte) error {
		j := &job{id: moraine.JobID(lastU64(key))}
		if err := j.decode(value); err != nil {
			return err
		}
		switch {
		case j.state == wire.JobState_JOB_STATE_PENDING:
			want[string(c.k.jobReady(uint8(j.kind), j.after, j.id))] = true
		case j.live():
			want[string(c.k.jobLease(j.until, j.id))] = true
		default:
			want[string(c.k.jobEnded(j.updated, j.id))] = true
			ended++
		}
		if j.owner != 0 {
			owned[j.owner]++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n, _ := c.counters(); n[cJobsEnded] != ended {
		c.problem("%d ended jobs are counted and %d are there", n[cJobsEnded], ended)
	}
	for _, table := range []byte{tabJobReady, tabJobLease, tabJobEnded} {
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
	err := c.each(tabSessJobs, func(key, value []byte) error {
		id := moraine.SessionID(lastU64(key))
		n, err := decodeOwned(value)
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
