package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// runCloneTree does about limit records of a clone. It returns whether the job
// has ended; else it is to be written.
func (m *Machine) runCloneTree(t *tx, j *job, limit int) (over bool, err error) {
	c := &treeClone{}
	if err := c.decode(j.cursor); err != nil {
		return false, err
	}
	stop := len(t.order) + limit
	for len(t.order) < stop {
		keys, err := t.keysUnder(t.k.cloneDirs(j.id), 1)
		if err != nil {
			return false, err
		}
		switch {
		case j.ending != 0 && len(keys) > 0:
			t.del(keys[0])
		case j.ending != 0:
			return true, m.endClone(t, j, c)
		case c.from != 0:
			if err := m.cloneMore(t, j, c, stop); err != nil {
				return false, err
			}
		case len(keys) == 0:
			if why, err := m.publishClone(t, j, c); err != nil || why == nil {
				return err == nil, err
			} else {
				j.ending, j.err = wire.JobState_JOB_STATE_FAILED, clip(why.Error(), moraine.MaxNameLen)
			}
		default:
			if err := m.cloneDir(t, j, c, keys[0], stop); err != nil {
				return false, err
			}
		}
	}
	j.cursor = c.encode()
	return false, nil
}

// endClone ends a job that is not to be published.
func (m *Machine) endClone(t *tx, j *job, c *treeClone) error {
	top, err := t.inode(c.top)
	if err != nil {
		return damaged(err)
	}
	if err := m.dropTree(t, top, j.subject); err != nil {
		return err
	}
	return m.endJob(t, j, j.ending, j.err)
}

// cloneDir clones the next entries of one directory.
func (m *Machine) cloneDir(t *tx, j *job, c *treeClone, key []byte, stop int) error {
	row := &clonedDir{}
	b, _, err := t.Get(key)
	if err == nil {
		err = row.decode(b)
	}
	if err != nil {
		return err
	}
	from := moraine.InodeID(lastU64(key))
	src, err := t.view.inode(from)
	gone := moraineKind(err) == moraine.NotFound
	if err != nil && !gone {
		return err
	}
	if !gone {
		in, err := t.inJobScope(j, src)
		if err != nil {
			return err
		}
		gone = !in
	}
	if gone || src.nlink == 0 {
		if from == moraine.InodeID(j.target) {
			j.ending, j.err = wire.JobState_JOB_STATE_FAILED, "the directory was removed"
			return nil
		}
		t.del(key) // removed since its name was seen: its like stays empty, or as it is
		return nil
	}
	t.mindHold(from) // its holder may have made files that are not here yet
	into, err := t.inode(row.into)
	if err != nil {
		return damaged(err)
	}
	most := max((stop-len(t.order))/8, 1)
	names, entries, err := t.listDir(from, row.last, most)
	if err != nil {
		return err
	}
	for n, name := range names {
		if n > 0 && len(t.order) >= stop || c.from != 0 {
			t.put(key, row.encode())
			return nil
		}
		row.last = name
		if name == moraine.UploadsDir {
			continue
		}
		if err := m.cloneEntry(t, j, c, into, name, entries[n], stop); err != nil {
			return err
		}
		j.done++
	}
	if len(names) < most {
		t.del(key)
		return nil
	}
	t.put(key, row.encode())
	return nil
}

// cloneEntry makes the like of one entry.
func (m *Machine) cloneEntry(t *tx, j *job, c *treeClone, into *inode, name string, e dentry, stop int) error {
	src, err := t.view.inode(e.inode)
	if err != nil {
		return damaged(err)
	}
	if src.typ == typeDirectory {
		dir, err := m.likeDir(t, src, into.tenant)
		if err != nil {
			return err
		}
		m.linkLike(t, into, name, dir)
		t.put(t.k.cloneDir(j.id, src.id), (&clonedDir{into: dir.id}).encode())
		return nil
	}
	i, err := m.like(t, src, into.tenant)
	if err != nil {
		return err
	}
	m.linkLike(t, into, name, i)
	if src.typ != typeFile {
		return nil
	}
	c.from, c.into, c.generation, c.upTo = src.id, i.id, src.generation, 0
	return m.cloneMore(t, j, c, stop)
}

// linkLike gives a like its name, without a change of the directory's times.
func (m *Machine) linkLike(t *tx, dir *inode, name string, child *inode) {
	mtime := dir.mtime
	m.link(t, dir, name, child)
	dir.mtime = mtime
	t.putInode(dir)
	t.putInode(child)
}

// retabled reports whether a table of a content reaches over the place up to which
// its tables were shared: eviction and staging change tables, and no generation.
func (t *tx) retabled(content uint64, upTo int64) (over bool, err error) {
	ok, err := t.speaks(levelRetabled)
	if err != nil || !ok {
		return false, err
	}
	err = t.refsFrom(content, upTo, func(r ref) (bool, error) {
		over = r.base < upTo
		return false, nil
	})
	return over, err
}

// cloneMore shares the next tables of the file under way.
func (m *Machine) cloneMore(t *tx, j *job, c *treeClone, stop int) error {
	src, err := t.view.inode(c.from)
	if moraineKind(err) == moraine.NotFound {
		return m.uncloned(t, c)
	}
	if err != nil {
		return err
	}
	if in, err := t.inJobScope(j, src); err != nil {
		return err
	} else if !in {
		return m.uncloned(t, c)
	}
	i, err := t.inode(c.into)
	if err != nil {
		return damaged(err)
	}
	again := src.generation != c.generation
	if !again {
		if again, err = t.retabled(src.content, c.upTo); err != nil {
			return err
		}
	}
	if again {
		// Half of what it was is worth nothing: from the beginning.
		if err := m.discard(t, i.dropContent()); err != nil {
			return err
		}
		c.generation, c.upTo = src.generation, 0
	}
	var next []ref
	most := max((stop-len(t.order))/2, 1)
	err = t.refsFrom(src.content, c.upTo-1, func(r ref) (bool, error) {
		if r.end > c.upTo {
			next = append(next, r)
		}
		return len(next) <= most, nil
	})
	if err != nil {
		return err
	}
	for _, r := range next[:min(len(next), most)] {
		if err := m.shareTable(t, i, r); err != nil {
			return err
		}
		c.upTo = r.end
		i.size = r.end
	}
	if len(next) > most {
		t.putInode(i)
		return nil
	}
	i.size, i.mtime = src.size, src.mtime
	if i.level, err = t.levelBeside(src); err != nil {
		return err
	}
	i.degraded = src.degraded
	c.from, c.into, c.generation, c.upTo = 0, 0, 0, 0
	if err := t.watchLevel(i); err != nil {
		return err
	}
	t.putInode(i)
	return nil
}

// uncloned takes the file under way out of the new tree, because its source was
// removed.
func (m *Machine) uncloned(t *tx, c *treeClone) error {
	i, err := t.inode(c.into)
	if err != nil {
		return damaged(err)
	}
	dir, err := t.inode(i.parent)
	if err != nil {
		return damaged(err)
	}
	_, name, err := t.nameOf(i)
	if err != nil {
		return err
	}
	m.unlink(t, dir, name, i)
	c.from, c.into, c.generation, c.upTo = 0, 0, 0, 0
	return m.dropName(t, i, name)
}

// publishClone gives the tree its name. why is set where it cannot have it.
func (m *Machine) publishClone(t *tx, j *job, c *treeClone) (why, err error) {
	top, err := t.inode(c.top)
	if err != nil {
		return nil, damaged(err)
	}
	dir, err := t.inode(c.parent)
	if moraineKind(err) == moraine.NotFound || err == nil && dir.nlink == 0 {
		return fail(moraine.NotFound, "clone tree", c.name, "the directory that it was for was removed"), nil
	}
	if err != nil {
		return nil, err
	}
	if in, err := t.inJobScope(j, dir); err != nil {
		return nil, err
	} else if !in {
		return fail(moraine.NotFound, "clone tree", c.name, "the directory that it was for was moved"), nil
	}
	_, taken, err := t.lookup(dir.id, c.name)
	if err != nil {
		return nil, err
	}
	if taken {
		return fail(moraine.Exists, "clone tree", c.name, "something else has the name now"), nil
	}
	if dir.sealed {
		return t.immutable(dir), nil
	}
	if why := t.fitsBelow(dir.id, top.id); why != nil {
		if !isAnswer(why) {
			return nil, why
		}
		return why, nil
	}
	s, err := t.usageState()
	if err != nil {
		return nil, err
	}
	if s.live != 0 {
		below, err := t.usageNow(usageKey{s.live, top.id})
		if err != nil {
			return nil, err
		}
		if why := t.fits(s, dir.id, below.add(usage{inodes: 1})); why != nil {
			if !isAnswer(why) {
				return nil, why
			}
			return why, nil
		}
	}
	m.link(t, dir, c.name, top)
	t.putInode(top)
	if err := m.flushTree(t, top); err != nil {
		return nil, err
	}
	j.total = j.done
	return nil, m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}
