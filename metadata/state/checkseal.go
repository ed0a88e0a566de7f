package state

import "github.com/morainefs/moraine"

// seals checks that checkpoints, their directories and their files are sealed, and that
// nothing else says so.
func (c *checker) seals() error {
	saving := make(map[moraine.InodeID]bool)
	err := c.each(tabStep, func(key, value []byte) error {
		s := &step{id: stepOfKey(key)}
		if err := s.decode(value); err != nil {
			return err
		}
		dir := c.inodes[s.dir]
		switch {
		case s.state == stepOpen || s.state == stepSealed:
			saving[s.dir] = true
			if dir != nil && (!dir.sealed || dir.step != (stepID{})) {
				c.problem("step %s is %s; its directory is sealed %t, as the step %s", s.id, s.state, dir.sealed, dir.step)
			}
		case s.state == stepCommitted && dir != nil && (!dir.sealed || dir.step != s.id):
			c.problem("step %s is committed; its directory is sealed %t, as the step %s", s.id, dir.sealed, dir.step)
		}
		if index := c.inodes[s.index]; s.index != 0 && dir != nil && (index == nil || index.parent != s.dir) {
			c.problem("step %s has the index %s, which is not in its directory", s.id, s.index)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.typ == typeDirectory && i.sealed {
			if err := c.sealedDir(i, saving[i.id]); err != nil {
				return err
			}
		}
		if dir := c.inodes[i.parent]; dir != nil && dir.sealed && !i.sealed {
			c.problem("inode %s is in the sealed directory %s and is not sealed", i.id, dir.id)
		}
		if i.typ == typeFile && i.sealed && i.manyLinks {
			c.problem("inode %s is sealed and has, or had, several names", i.id)
		}
	}
	return nil
}

func (c *checker) sealedDir(i *inode, saving bool) error {
	if i.step == (stepID{}) {
		if !saving {
			c.problem("directory %s is sealed and no step is saved in it", i.id)
		}
		return nil
	}
	s, err := c.stepRecord(i.step)
	if err == nil && (s == nil || s.state != stepCommitted || s.dir != i.id) {
		c.problem("directory %s is sealed as step %s, which is not committed in it", i.id, i.step)
	}
	return err
}

// stepLeases checks the two rows of each read lease against each other.
func (c *checker) stepLeases() error {
	err := c.each(tabStepLease, func(key, _ []byte) error {
		id, reader := stepOfKey(key[:len(key)-8]), moraine.SessionID(lastU64(key))
		times, err := c.stepLease(id, reader)
		if err != nil {
			return err
		}
		_, ok, err := c.r.Get(c.k.sessionLease(reader, id))
		if !ok || times == 0 || !c.known(reader) {
			c.problem("session %s leases step %s %d times; the session knows: %t, and there is one: %t", reader, id, times, ok, c.known(reader))
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.each(tabSessLease, func(key, _ []byte) error {
		id, reader := stepOfKey(key), sessionOfLease(key)
		_, ok, err := c.r.Get(c.k.stepLease(id, reader))
		if !ok {
			c.problem("session %s has a lease on step %s, which does not know", reader, id)
		}
		return err
	})
}
