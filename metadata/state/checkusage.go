package state

import "github.com/morainefs/moraine"

// usages counts what is below each directory from the inodes alone, and holds
// every column against it.
func (c *checker) usages() error {
	s, err := c.usageState()
	if err != nil {
		return err
	}
	want := make(map[usageKey]usage)
	for _, i := range c.sorted() {
		own := usage{bytes: i.size, inodes: 1}
		if i.step != (stepID{}) {
			own.steps = 1
		}
		for at := i.parent; at != 0; {
			if s.live != 0 {
				k := usageKey{s.live, at}
				want[k] = want[k].add(own)
			}
			if s.building != 0 && i.id <= s.counted {
				k := usageKey{s.building, at}
				want[k] = want[k].add(own)
			}
			dir := c.inodes[at]
			if dir == nil {
				break // told elsewhere
			}
			at = dir.parent
		}
	}
	err = c.each(tabUsage, func(key, value []byte) error {
		k := usageKey{key[3], moraine.InodeID(lastU64(key))}
		var have usage
		if err := have.decode(value); err != nil {
			return err
		}
		if k.column == s.dropping && k.column != 0 {
			return nil
		}
		if have != want[k] {
			c.problem("column %d counts %d bytes, %d inodes and %d checkpoints below %s, there are %d, %d and %d",
				k.column, have.bytes, have.inodes, have.steps, k.dir, want[k].bytes, want[k].inodes, want[k].steps)
		}
		delete(want, k)
		return nil
	})
	for _, i := range c.sorted() {
		for _, column := range []uint8{s.live, s.building} {
			if u := want[usageKey{column, i.id}]; !u.zero() {
				c.problem("column %d counts nothing below %s, there are %d bytes and %d inodes", column, i.id, u.bytes, u.inodes)
			}
		}
	}
	return err
}

// quotas checks that each is a directory's, and that they are as many as the
// state says.
func (c *checker) quotas() error {
	s, err := c.usageState()
	if err != nil {
		return err
	}
	n := uint64(0)
	err = c.each(tabQuota, func(key, value []byte) error {
		n++
		if i := c.inodes[moraine.InodeID(lastU64(key))]; i == nil || i.typ != typeDirectory {
			c.problem("%x is the quota of no directory", key)
		}
		var q quota
		return q.decode(value)
	})
	if n != s.quotas {
		c.problem("the state counts %d quotas and has %d", s.quotas, n)
	}
	if live := s.phase != recountNone; live {
		if j, err := c.job(s.job); err != nil || j == nil || !j.live() {
			c.problem("the recount of job %s is under way, and the job is not", s.job)
		}
	}
	return err
}
