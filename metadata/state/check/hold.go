package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// holds checks the exclusive leases against each other and their sessions, and the number ranges of
// sessions.
func (c *nameChecks) holds() error {
	counts, err := c.Counters()
	if err != nil {
		return err
	}
	of := map[moraine.InodeID]moraine.SessionID{}
	err = c.each(record.TabHold, func(key, value []byte) error {
		dir := moraine.InodeID(record.LastU64(key))
		h, err := record.DecodeHold(dir, value)
		if err != nil {
			return err
		}
		s := h.Session
		of[dir] = s
		if i := c.inodes[dir]; i == nil || i.Typ != record.TypeDirectory {
			c.problem("session %s has the exclusive lease on %s, which is no directory", s, dir)
		}
		if !c.sessions[s] {
			c.problem("session %s has the exclusive lease on %s, and is not alive", s, dir)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if counts[record.CHolds] != uint64(len(of)) {
		c.problem("%d exclusive leases are counted, and %d there", counts[record.CHolds], len(of))
	}
	rows := 0
	err = c.each(record.TabSessionHold, func(key, _ []byte) error {
		dir, s := moraine.InodeID(record.LastU64(key)), moraine.SessionID(record.LastU64(key[:11]))
		if rows++; of[dir] != s {
			c.problem("the exclusive lease on %s is in the rows of session %s, and is of %s", dir, s, of[dir])
		}
		return nil
	})
	if err != nil {
		return err
	}
	if rows != len(of) {
		c.problem("%d exclusive leases, and %d rows of sessions", len(of), rows)
	}
	return c.each(record.TabRange, func(key, value []byte) error {
		r, err := record.DecodeRange(value)
		if err != nil {
			return err
		}
		s := moraine.SessionID(record.LastU64(key[:11]))
		if !c.sessions[s] {
			c.problem("session %s has numbers, and is not alive", s)
		}
		if r.Last() != moraine.InodeID(record.LastU64(key)) || moraine.ID(r.Last()).Counter() > counts[record.CInode] {
			c.problem("session %s has the numbers %s to %s, with the key of %x", s, r.First, r.Last(), key)
		}
		return nil
	})
}
