package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// seals checks that checkpoints and snapshots, their directories and their files are sealed, and
// nothing else.
func (c *stepChecks) seals() error {
	saving := make(map[moraine.InodeID]bool)
	err := c.each(record.TabStep, func(key, value []byte) error {
		s := &record.Step{Id: ckpt.StepOfKey(key)}
		if err := s.Decode(value); err != nil {
			return err
		}
		dir := c.inodes[s.Dir]
		switch {
		case s.State == record.StepOpen || s.State == record.StepSealed:
			saving[s.Dir] = true
			if dir != nil && (!dir.Sealed || dir.Step != s.Id || dir.CommittedStep()) {
				c.problem("step %s is %s, but its directory has sealed %t and step %s", s.Id, s.State, dir.Sealed, dir.Step)
			}
		case s.State == record.StepCommitted && dir != nil && (!dir.Sealed || dir.Step != s.Id || !dir.CommittedStep()):
			c.problem("step %s is committed, but its directory has sealed %t and step %s", s.Id, dir.Sealed, dir.Step)
		}
		if index := c.inodes[s.Index]; s.Index != 0 && dir != nil && (index == nil || index.Parent != s.Dir) {
			c.problem("step %s has index %s, which is not in its directory", s.Id, s.Index)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.Typ == record.TypeDirectory && i.Sealed {
			if err := c.sealedDir(i, saving[i.Id]); err != nil {
				return err
			}
		}
		if dir := c.inodes[i.Parent]; dir != nil && dir.Sealed && !i.Sealed {
			c.problem("inode %s is in sealed directory %s, but is not sealed", i.Id, dir.Id)
		}
		if i.Typ == record.TypeFile && i.Sealed && i.ManyLinks {
			c.problem("inode %s is sealed, but has or had several names", i.Id)
		}
	}
	return nil
}

func (c *stepChecks) sealedDir(i *record.Inode, saving bool) error {
	if !i.CommittedStep() {
		if !saving && !i.Snapshot() {
			c.problem("directory %s is sealed, but belongs to no unfinished step", i.Id)
		}
		return nil
	}
	s, err := tree.StepRecord(c.View, i.Step)
	if err == nil && (s == nil || s.State != record.StepCommitted || s.Dir != i.Id) {
		c.problem("directory %s is sealed as step %s, which has another directory or is not committed", i.Id, i.Step)
	}
	return err
}

// stepLeases checks the two rows of each read lease against each other.
func (c *stepChecks) stepLeases() error {
	err := c.each(record.TabStepLease, func(key, _ []byte) error {
		id, reader := ckpt.StepOfKey(key[:len(key)-8]), moraine.SessionID(record.LastU64(key))
		times, err := ckpt.StepLease(c.View, id, reader)
		if err != nil {
			return err
		}
		_, ok, err := c.R.Get(c.K.SessionLease(reader, id))
		if !ok || times == 0 || !c.known(reader) {
			c.problem("session %s has step %s leased %d times; row of the session: %t, session exists: %t", reader, id, times, ok, c.known(reader))
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.each(record.TabSessLease, func(key, _ []byte) error {
		id, reader := ckpt.StepOfKey(key), ckpt.SessionOfLease(key)
		_, ok, err := c.R.Get(c.K.StepLease(id, reader))
		if !ok {
			c.problem("session %s has a lease on step %s, which has no such reader", reader, id)
		}
		return err
	})
}
