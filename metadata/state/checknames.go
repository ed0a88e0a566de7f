package state

import (
	"slices"

	"github.com/morainefs/moraine"
)

func (c *checker) allInodes() error {
	return c.each(tabInode, func(key, value []byte) error {
		i := &inode{id: moraine.InodeID(lastU64(key))}
		if err := i.decode(value); err != nil {
			return err
		}
		c.inodes[i.id] = i
		if i.content != 0 {
			if other := c.content[i.content]; other != nil {
				c.problem("inodes %s and %s have the same content %d", other.id, i.id, i.content)
			}
			c.content[i.content] = i
		}
		return nil
	})
}

func (c *checker) dentries() error {
	entries := make(map[moraine.InodeID]uint64)
	dirs := make(map[moraine.InodeID]uint32)
	n, err := c.counters()
	if err != nil {
		return err
	}
	kept := n[cNames] != 0
	heights := make(map[moraine.InodeID]uint32)
	err = c.each(tabHeight, func(key, value []byte) (err error) {
		id := moraine.InodeID(lastU64(key))
		if i := c.inodes[id]; i == nil || i.typ != typeDirectory {
			c.problem("%s has a height and is no directory", id)
		}
		heights[id], err = decodeHeight(value)
		return err
	})
	if err != nil {
		return err
	}
	err = c.each(tabDentry, func(key, value []byte) error {
		parent, name := moraine.InodeID(lastU64(key[:11])), string(key[11:])
		e, err := decodeDentry(value)
		if err != nil {
			return err
		}
		entries[parent]++
		c.names[e.inode]++
		child := c.inodes[e.inode]
		switch {
		case c.inodes[parent] == nil:
			c.problem("entry %q of %s: there is no such directory", name, parent)
		case child == nil:
			c.problem("entry %q of %s: inode %s does not exist", name, parent, e.inode)
		case child.typ != e.typ || (!child.manyLinks && child.parent != parent):
			c.problem("entry %q of %s: inode %s has type %d and parent %s", name, parent, e.inode, child.typ, child.parent)
		case !child.manyLinks && child.name != name && (kept || child.name != ""):
			c.problem("entry %q of %s: inode %s keeps the name %q", name, parent, e.inode, child.name)
		case child.manyLinks:
			c.rows[string(c.k.name(e.inode, parent, name))] = true
		case child.typ == typeDirectory:
			dirs[parent]++
			if heights[parent] <= heights[e.inode] {
				c.problem("directory %s has height %d, and %s in it %d", parent, heights[parent], e.inode, heights[e.inode])
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.typ != typeDirectory {
			continue
		}
		if i.entries != entries[i.id] {
			c.problem("directory %s counts %d entries and has %d", i.id, i.entries, entries[i.id])
		}
		if i.nlink != 0 && i.nlink != 2+dirs[i.id] {
			c.problem("directory %s has link count %d and %d directories", i.id, i.nlink, dirs[i.id])
		}
	}
	return nil
}

// nameRows checks the names of what has had two against the directories.
func (c *checker) nameRows() error {
	home := make(map[moraine.InodeID]bool)
	err := c.each(tabName, func(key, _ []byte) error {
		id := moraine.InodeID(lastU64(key[:11]))
		parent, name := nameOfKey(key)
		if !c.rows[string(key)] {
			c.problem("inode %s has the row of name %q in %s, which is not its entry", id, name, parent)
			return nil
		}
		delete(c.rows, string(key))
		i := c.inodes[id]
		if i.parent == parent && (i.name == name || i.name == "") {
			home[id] = true
		}
		return nil
	})
	if len(c.rows) > 0 {
		c.problem("%d names of files with several have no row", len(c.rows))
	}
	for _, i := range c.sorted() {
		if i.manyLinks && i.nlink > 0 && !home[i.id] {
			c.problem("inode %s keeps the name %q in %s, which it does not have", i.id, i.name, i.parent)
		}
		if i.nlink == 0 && (i.name != "" || i.parent != 0) {
			c.problem("inode %s has no name and keeps %q in %s", i.id, i.name, i.parent)
		}
	}
	return err
}

// attributes checks extended attributes against their inodes.
func (c *checker) attributes() error {
	has := make(map[moraine.InodeID]int)
	bytes := make(map[moraine.InodeID]int)
	err := c.each(tabXattr, func(key, value []byte) error {
		id := moraine.InodeID(lastU64(key[:11]))
		v, err := decodeXattr(value)
		has[id]++
		bytes[id] += len(key) - 11 + len(v)
		if c.inodes[id] == nil {
			c.problem("inode %s has extended attributes and does not exist", id)
		}
		return err
	})
	for _, i := range c.sorted() {
		if i.xattrs != (has[i.id] > 0) || has[i.id] > MaxXattrs || bytes[i.id] > MaxXattrBytes {
			c.problem("inode %s has %d extended attributes of %d bytes, its flag is %t", i.id, has[i.id], bytes[i.id], i.xattrs)
		}
	}
	return err
}

// sorted returns the inodes in order, so that problems come in order too.
func (c *checker) sorted() []*inode {
	ids := make([]moraine.InodeID, 0, len(c.inodes))
	for id := range c.inodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := make([]*inode, len(ids))
	for n, id := range ids {
		out[n] = c.inodes[id]
	}
	return out
}

func (c *checker) linkCounts() error {
	making, err := c.concats()
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.typ == typeDirectory {
			continue
		}
		if int(i.nlink) != c.names[i.id] {
			c.problem("inode %s has link count %d and %d names", i.id, i.nlink, c.names[i.id])
		}
		if (i.owner != 0 || making[i.id]) != (i.nlink == 0) {
			c.problem("inode %s has link count %d and owner %s", i.id, i.nlink, i.owner)
		}
	}
	inTable := make(map[moraine.InodeID]bool)
	err = c.each(tabDetached, func(key, _ []byte) error {
		inTable[moraine.InodeID(lastU64(key))] = true
		return nil
	})
	for _, i := range c.sorted() {
		detached := i.typ == typeDirectory && i.nlink == 0
		if detached && !inTable[i.id] {
			c.problem("directory %s was removed and no job takes it away", i.id)
		}
		if i.typ == typeDirectory && !detached && i.id != c.k.top() && c.names[i.id] != 1 {
			c.unnamedDir(i)
		}
	}
	return err
}

// unnamedDir judges a directory that is not named once. The directory of a
// checkpoint that is not committed yet has no name.
func (c *checker) unnamedDir(i *inode) {
	if c.names[i.id] == 0 && i.owner == 0 {
		c.detached++ // counted by the checkpoint's own check
		return
	}
	c.problem("directory %s has %d names", i.id, c.names[i.id])
}

// owned checks what hangs on sessions.
func (c *checker) owned() error {
	err := c.each(tabSessionInode, func(key, _ []byte) error {
		id, s := moraine.InodeID(lastU64(key)), moraine.SessionID(lastU64(key[:11]))
		if i := c.inodes[id]; i == nil || i.owner != s {
			c.problem("session %s has inode %s, which is not its own", s, id)
		}
		if !c.known(s) {
			c.problem("inode %s belongs to session %s, which is gone", id, s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.answers()
}

// answers checks that answers are kept for sessions that are known, and that the records of
// those that keep one inside say how many there are apart.
func (c *checker) answers() error {
	apart := map[moraine.SessionID]uint64{}
	err := c.each(tabAnswer, func(key, _ []byte) error {
		s := moraine.SessionID(lastU64(key[:11]))
		if apart[s]++; !c.known(s) {
			c.problem("an answer is kept for session %s, which is gone", s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(tabSession, func(key, value []byte) error {
		s := &session{id: moraine.SessionID(lastU64(key))}
		if err := s.decode(value); err != nil {
			return err
		}
		if s.inside && s.apart != apart[s.id] {
			c.problem("session %s has %d answers apart, its record says %d", s.id, apart[s.id], s.apart)
		}
		if s.number != 0 && s.number < s.ackedBelow {
			c.problem("session %s keeps the answer to number %d, acknowledged below %d", s.id, s.number, s.ackedBelow)
		}
		return nil
	})
}
