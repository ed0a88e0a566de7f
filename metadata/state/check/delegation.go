package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// delegations checks delegated directories, the rows of their sessions and the reserved numbers
// against each other.
func (c *nameChecks) delegations() error {
	has := map[moraine.SessionID]uint64{}
	rows := map[moraine.InodeID]moraine.SessionID{}
	err := c.each(record.TabSessDir, func(key, _ []byte) error {
		s, id := moraine.SessionID(record.LastU64(key[:11])), moraine.InodeID(record.LastU64(key))
		has[s]++
		rows[id] = s
		if i := c.inodes[id]; i == nil || i.Delegate != s || !c.known(s) {
			c.problem("session %s has a row for directory %s, which is not delegated to it", s, id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.Delegate != 0 && rows[i.Id] != i.Delegate {
			c.problem("directory %s is delegated to session %s, which has no row for it", i.Id, i.Delegate)
		}
	}
	counts := map[moraine.SessionID]uint64{}
	err = c.each(record.TabSessNumbers, func(key, value []byte) error {
		s, d := moraine.SessionID(record.LastU64(key)), &record.Delegations{}
		if err := d.Decode(value); err != nil {
			return err
		}
		counts[s] = d.Dirs
		if d.Dirs != has[s] || !c.known(s) {
			c.problem("session %s has %d directories delegated, but its record counts %d", s, has[s], d.Dirs)
		}
		left := uint64(0)
		for _, r := range d.Numbers {
			left += uint64(r.End - r.Next)
			for id := range c.inodes {
				if id >= r.Next && id < r.End {
					c.problem("inode %s exists, but its number is reserved for session %s", id, s)
				}
			}
		}
		if d.Used+left > d.Reserved {
			c.problem("session %s has reserved %d inode numbers, but has used %d and may use %d", s, d.Reserved, d.Used, left)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for s, n := range has {
		if counts[s] != n {
			c.problem("session %s has %d directories delegated, but its record counts %d", s, n, counts[s])
		}
	}
	return nil
}
