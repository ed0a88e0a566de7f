package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/usage"
)

// usages counts what is below each directory from the inodes alone and compares every column with
// it.
func (c *nameChecks) usages() error {
	s, err := usage.UsageState(c.View)
	if err != nil {
		return err
	}
	want := make(map[kvtx.UsageKey]record.Usage)
	for _, i := range c.sorted() {
		own := record.Usage{Bytes: i.Size + int64(i.Reserved), Inodes: 1}
		if i.CommittedStep() {
			own.Steps = 1
		}
		for at := i.Parent; at != 0; {
			if s.Live != 0 {
				k := kvtx.UsageKey{Column: s.Live, Dir: at}
				want[k] = want[k].Add(own)
			}
			if s.Building != 0 && i.Id <= s.Counted {
				k := kvtx.UsageKey{Column: s.Building, Dir: at}
				want[k] = want[k].Add(own)
			}
			dir := c.inodes[at]
			if dir == nil {
				break // another check reports it
			}
			at = dir.Parent
		}
	}
	err = c.each(record.TabUsage, func(key, value []byte) error {
		k := kvtx.UsageKey{Column: key[3], Dir: moraine.InodeID(record.LastU64(key))}
		var have record.Usage
		if err := have.Decode(value); err != nil {
			return err
		}
		if k.Column == s.Dropping && k.Column != 0 {
			return nil
		}
		if have != want[k] {
			c.problem("column %d counts %d bytes, %d inodes and %d steps below %s, but the tree has %d, %d and %d",
				k.Column, have.Bytes, have.Inodes, have.Steps, k.Dir, want[k].Bytes, want[k].Inodes, want[k].Steps)
		}
		delete(want, k)
		return nil
	})
	for _, i := range c.sorted() {
		for _, column := range []uint8{s.Live, s.Building} {
			if u := want[kvtx.UsageKey{Column: column, Dir: i.Id}]; !u.Zero() {
				c.problem("column %d counts nothing below %s, but the tree has %d bytes and %d inodes", column, i.Id, u.Bytes, u.Inodes)
			}
		}
	}
	return err
}

// quotas checks that each quota belongs to a directory, and that their number equals the state's
// count.
func (c *nameChecks) quotas() error {
	s, err := usage.UsageState(c.View)
	if err != nil {
		return err
	}
	n := uint64(0)
	err = c.each(record.TabQuota, func(key, value []byte) error {
		n++
		if i := c.inodes[moraine.InodeID(record.LastU64(key))]; i == nil || i.Typ != record.TypeDirectory {
			c.problem("key %x has a quota, but belongs to no directory", key)
		}
		var q record.Quota
		return q.Decode(value)
	})
	if n != s.Quotas {
		c.problem("the state counts %d quotas, but has %d", s.Quotas, n)
	}
	if live := s.Phase != record.RecountNone; live {
		if j, err := jobs.Job(c.View, s.Job); err != nil || j == nil || !j.Live() {
			c.problem("the state has a recount by job %s, which is not live", s.Job)
		}
	}
	return err
}
