package check

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/locks"
	"github.com/morainefs/moraine/metadata/state/record"
)

// locks checks the locks of inodes and the rows of their sessions against each other.
func (c *nameChecks) locks() error {
	type place struct {
		session uint64
		inode   moraine.InodeID
	}
	has := map[place]bool{}
	inodes := uint64(0)
	err := c.each(record.TabLock, func(key, value []byte) error {
		id := moraine.InodeID(record.LastU64(key))
		if inodes++; c.inodes[id] == nil {
			c.problem("inode %s does not exist, but has locks", id)
		}
		table, err := record.DecodeLocks(value)
		if err != nil {
			return err
		}
		for _, lock := range table {
			at := place{lock.Session, id}
			if has[at] {
				continue
			}
			has[at] = true
			_, ok, err := c.R.Get(c.K.SessionLock(moraine.SessionID(lock.Session), id))
			if err != nil {
				return err
			}
			if !ok || !c.known(moraine.SessionID(lock.Session)) {
				c.problem("session %s has a lock on inode %s; row of the session: %t, session exists: %t", moraine.SessionID(lock.Session), id, ok, c.known(moraine.SessionID(lock.Session)))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = c.each(record.TabSessLock, func(key, _ []byte) error {
		s, id := binary.BigEndian.Uint64(key[3:]), locks.InodeOfRow(key)
		if !has[place{s, id}] {
			c.problem("session %s has a row for locks on inode %s, which has none of it", moraine.SessionID(s), id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	n, err := c.Counters()
	if err == nil && n[record.CLocked] != inodes {
		c.problem("%d inodes have locks, but the counter says %d", inodes, n[record.CLocked])
	}
	return err
}
