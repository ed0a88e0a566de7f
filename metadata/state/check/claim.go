package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// liveClaims compares the claims of a step that is being saved with what its parts count.
func (c *stepChecks) liveClaims(s *record.Step, counted uint32) error {
	rows := uint32(0)
	err := c.EachIn(c.K.Claims(s.Id), func(_, value []byte) (bool, error) {
		rank, err := record.DecodeNumber[uint32](record.StepVersion, value, "claim")
		if rows++; err == nil && rank >= s.World {
			c.problem("rank %d has a claim of step %s, which has %d ranks", rank, s.Id, s.World)
		}
		return true, err
	})
	if rows != counted {
		c.problem("step %s has %d claims, but its parts count %d", s.Id, rows, counted)
	}
	return err
}

// claims checks that each claim is of a step that is being saved, or that a job drops it.
func (c *stepChecks) claims() error {
	dropping := map[record.StepID]bool{}
	err := c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil {
			return err
		}
		if j.Kind == wire.JobKind_JOB_KIND_REMOVE_TREE && j.Live() {
			dropping[j.Step] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(record.TabClaim, func(key, _ []byte) error {
		id := ckpt.StepOfKey(key[:len(key)-wire.ClaimBytes])
		s, err := tree.StepRecord(c.View, id)
		if err != nil || s != nil && (s.State == record.StepOpen || s.State == record.StepSealed) || dropping[id] {
			return err
		}
		c.problem("step %s is not being saved, but has claims that no job drops", id)
		return nil
	})
}
