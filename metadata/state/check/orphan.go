package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// owned checks the files without a name that sessions own or keep, and the orphans that linger.
func (c *nameChecks) owned() error {
	keptBy := map[moraine.InodeID]uint64{}
	err := c.each(record.TabSessionInode, func(key, _ []byte) error {
		id, s := moraine.InodeID(record.LastU64(key)), moraine.SessionID(record.LastU64(key[:11]))
		keptBy[id]++
		if i := c.inodes[id]; i == nil || i.Owner != s && !i.Orphan() {
			c.problem("session %s lists inode %s, which another session owns or none", s, id)
		}
		if !c.known(s) {
			c.problem("inode %s belongs to session %s, which has ended", id, s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	lingers := map[moraine.InodeID]uint64{}
	err = c.each(record.TabLinger, func(key, value []byte) error {
		id, err := record.DecodeLinger(value)
		lingers[id] = record.LastU64(key)
		if c.inodes[id] == nil {
			c.problem("inode %s lingers, but does not exist", id)
		}
		return err
	})
	for _, i := range c.sorted() {
		if i.Linger != lingers[i.Id] || i.Orphan() && i.KeptBy != keptBy[i.Id] {
			c.problem("inode %s counts %d sessions that keep it, and lingers under number %d, but has %d and %d", i.Id, i.KeptBy, i.Linger, keptBy[i.Id], lingers[i.Id])
		}
	}
	return err
}

// openers compares the counter of sessions that may have files open with the sessions.
func (c *sessionChecks) openers() error {
	openers := uint64(0)
	err := c.each(record.TabSession, func(_, value []byte) error {
		var s record.Session
		err := s.Decode(value)
		if s.Opens {
			openers++
		}
		return err
	})
	if err != nil {
		return err
	}
	n, err := c.Counters()
	if err == nil && n[record.COpeners] != openers {
		c.problem("%d sessions may have files open, but the counter says %d", openers, n[record.COpeners])
	}
	return err
}
