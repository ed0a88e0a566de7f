package state

import "github.com/morainefs/moraine"

// holds checks the exclusive leases against each other and their sessions, and the
// numbers that sessions were given.
func (c *checker) holds() error {
	counts, err := c.counters()
	if err != nil {
		return err
	}
	of := map[moraine.InodeID]moraine.SessionID{}
	err = c.each(tabHold, func(key, value []byte) error {
		dir := moraine.InodeID(lastU64(key))
		h, err := decodeHold(dir, value)
		if err != nil {
			return err
		}
		s := h.Session
		of[dir] = s
		if i := c.inodes[dir]; i == nil || i.typ != typeDirectory {
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
	if counts[cHolds] != uint64(len(of)) {
		c.problem("%d exclusive leases are counted, and %d there", counts[cHolds], len(of))
	}
	rows := 0
	err = c.each(tabSessionHold, func(key, _ []byte) error {
		dir, s := moraine.InodeID(lastU64(key)), moraine.SessionID(lastU64(key[:11]))
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
	return c.each(tabRange, func(key, value []byte) error {
		r, err := decodeRange(value)
		if err != nil {
			return err
		}
		s := moraine.SessionID(lastU64(key[:11]))
		if !c.sessions[s] {
			c.problem("session %s has numbers, and is not alive", s)
		}
		if r.last() != moraine.InodeID(lastU64(key)) || moraine.ID(r.last()).Counter() > counts[cInode] {
			c.problem("session %s has the numbers %s to %s, with the key of %x", s, r.first, r.last(), key)
		}
		return nil
	})
}
