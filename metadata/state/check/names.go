package check

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// nameChecks check inodes, directories and what belongs to them: attributes, quotas and usage.
type nameChecks struct {
	*sessionChecks
	inodes   map[moraine.InodeID]*record.Inode
	names    map[moraine.InodeID]int // dentries that name an inode
	content  map[uint64]*record.Inode
	rows     map[string]bool // required keys of names
	detached int             // directories without a name that a step or a job owns
}

func (c *nameChecks) allInodes() error {
	return c.each(record.TabInode, func(key, value []byte) error {
		i := &record.Inode{Id: moraine.InodeID(record.LastU64(key))}
		if err := i.Decode(value); err != nil {
			return err
		}
		c.inodes[i.Id] = i
		if i.Content != 0 {
			if other := c.content[i.Content]; other != nil {
				c.problem("inodes %s and %s have the same content %d", other.Id, i.Id, i.Content)
			}
			c.content[i.Content] = i
		}
		return nil
	})
}

func (c *nameChecks) dentries() error {
	entries := make(map[moraine.InodeID]uint64)
	dirs := make(map[moraine.InodeID]uint32)
	heights := make(map[moraine.InodeID]uint32)
	err := c.each(record.TabHeight, func(key, value []byte) (err error) {
		id := moraine.InodeID(record.LastU64(key))
		if i := c.inodes[id]; i == nil || i.Typ != record.TypeDirectory {
			c.problem("inode %s has a height, but is not a directory", id)
		}
		heights[id], err = record.DecodeHeight(value)
		return err
	})
	if err != nil {
		return err
	}
	err = c.each(record.TabDentry, func(key, value []byte) error {
		parent, name := moraine.InodeID(record.LastU64(key[:11])), string(key[11:])
		e, err := record.DecodeDentry(value)
		if err != nil {
			return err
		}
		entries[parent]++
		c.names[e.Inode]++
		child := c.inodes[e.Inode]
		switch {
		case c.inodes[parent] == nil:
			c.problem("entry %q is in directory %s, which does not exist", name, parent)
		case child == nil:
			c.problem("entry %q of directory %s names inode %s, which does not exist", name, parent, e.Inode)
		case child.Typ != e.Typ || (!child.ManyLinks && child.Parent != parent):
			c.problem("entry %q of directory %s names inode %s, which has type %d and parent %s", name, parent, e.Inode, child.Typ, child.Parent)
		case !child.ManyLinks && child.Name != name:
			c.problem("entry %q of directory %s names inode %s, which has the name %q", name, parent, e.Inode, child.Name)
		case child.ManyLinks:
			c.rows[string(c.K.Name(e.Inode, parent, name))] = true
		case child.Typ == record.TypeDirectory:
			dirs[parent]++
			if heights[parent] <= heights[e.Inode] {
				c.problem("directory %s has height %d, but directory %s in it has height %d", parent, heights[parent], e.Inode, heights[e.Inode])
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.Typ != record.TypeDirectory {
			continue
		}
		if i.Entries != entries[i.Id] {
			c.problem("directory %s counts %d entries, but has %d", i.Id, i.Entries, entries[i.Id])
		}
		if i.Nlink != 0 && i.Nlink != 2+dirs[i.Id] {
			c.problem("directory %s has link count %d, but %d directories", i.Id, i.Nlink, dirs[i.Id])
		}
	}
	return nil
}

// nameRows checks the name rows of inodes that have had two names against the directories.
func (c *nameChecks) nameRows() error {
	home := make(map[moraine.InodeID]bool)
	err := c.each(record.TabName, func(key, _ []byte) error {
		id := moraine.InodeID(record.LastU64(key[:11]))
		parent, name := tree.NameOfKey(key)
		if !c.rows[string(key)] {
			c.problem("inode %s has a row for name %q in directory %s, which has no such entry", id, name, parent)
			return nil
		}
		delete(c.rows, string(key))
		i := c.inodes[id]
		if i.Parent == parent && i.Name == name {
			home[id] = true
		}
		return nil
	})
	if len(c.rows) > 0 {
		c.problem("%d names of files with several names have no row", len(c.rows))
	}
	for _, i := range c.sorted() {
		if i.ManyLinks && i.Nlink > 0 && !home[i.Id] {
			c.problem("inode %s records name %q in directory %s, which is not one of its names", i.Id, i.Name, i.Parent)
		}
		if i.Nlink == 0 && (i.Name != "" || i.Parent != 0) {
			c.problem("inode %s has no name, but records name %q in directory %s", i.Id, i.Name, i.Parent)
		}
	}
	return err
}

// attributes checks extended attributes against their inodes.
func (c *nameChecks) attributes() error {
	has := make(map[moraine.InodeID]int)
	bytes := make(map[moraine.InodeID]int)
	err := c.each(record.TabXattr, func(key, value []byte) error {
		id := moraine.InodeID(record.LastU64(key[:11]))
		v, err := record.DecodeXattr(value)
		has[id]++
		bytes[id] += len(key) - 11 + len(v)
		if c.inodes[id] == nil {
			c.problem("inode %s has extended attributes, but does not exist", id)
		} else if text := names.CheckACL(c.inodes[id], string(key[11:]), v); text != "" {
			c.problem("inode %s: %s", id, text)
		}
		return err
	})
	for _, i := range c.sorted() {
		if i.Xattrs != (has[i.Id] > 0) || has[i.Id] > names.MaxXattrs || bytes[i.Id] > names.MaxXattrBytes {
			c.problem("inode %s has %d extended attributes with %d bytes, but its flag is %t", i.Id, has[i.Id], bytes[i.Id], i.Xattrs)
		}
	}
	return err
}

// sorted returns the inodes in order, so that problems are listed in order.
func (c *nameChecks) sorted() []*record.Inode {
	ids := make([]moraine.InodeID, 0, len(c.inodes))
	for id := range c.inodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := make([]*record.Inode, len(ids))
	for n, id := range ids {
		out[n] = c.inodes[id]
	}
	return out
}

func (c *nameChecks) linkCounts() error {
	making, err := c.concats()
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.Typ == record.TypeDirectory {
			continue
		}
		if int(i.Nlink) != c.names[i.Id] {
			c.problem("inode %s has link count %d, but %d names", i.Id, i.Nlink, c.names[i.Id])
		}
		if (i.Owner != 0 || making[i.Id] || i.Orphan()) != (i.Nlink == 0) {
			c.problem("inode %s has link count %d, but its owner is session %s", i.Id, i.Nlink, i.Owner)
		}
	}
	inTable := make(map[moraine.InodeID]bool)
	err = c.each(record.TabDetached, func(key, _ []byte) error {
		inTable[moraine.InodeID(record.LastU64(key))] = true
		return nil
	})
	for _, i := range c.sorted() {
		detached := i.Typ == record.TypeDirectory && i.Nlink == 0
		if detached && !inTable[i.Id] {
			c.problem("directory %s was removed, but no job deletes it", i.Id)
		}
		if i.Typ == record.TypeDirectory && !detached && i.Id != c.K.Top() && c.names[i.Id] != 1 {
			c.unnamedDir(i)
		}
	}
	return err
}

// unnamedDir checks a directory without exactly one name. The directory of an uncommitted
// checkpoint has none.
func (c *nameChecks) unnamedDir(i *record.Inode) {
	if c.names[i.Id] == 0 && i.Owner == 0 {
		c.detached++ // the checkpoint's own check counts it
		return
	}
	c.problem("directory %s has %d names", i.Id, c.names[i.Id])
}
