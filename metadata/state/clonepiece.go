package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// runCloneTree does about limit records of a clone. It returns whether the job
// has ended; else it is to be written.
func (m *Machine) runCloneTree(t *tx, j *record.Job, limit int) (over bool, err error) {
	c := &record.TreeClone{}
	if err := c.Decode(j.Cursor); err != nil {
		return false, err
	}
	stop := len(t.order) + limit
	for len(t.order) < stop {
		keys, err := t.keysUnder(t.k.cloneDirs(j.Id), 1)
		if err != nil {
			return false, err
		}
		switch {
		case j.Ending != 0 && len(keys) > 0:
			t.del(keys[0])
		case j.Ending != 0:
			return true, m.endClone(t, j, c)
		case c.From != 0:
			if err := m.cloneMore(t, j, c, stop); err != nil {
				return false, err
			}
		case len(keys) == 0:
			if why, err := m.publishClone(t, j, c); err != nil || why == nil {
				return err == nil, err
			} else {
				j.Ending, j.Err = wire.JobState_JOB_STATE_FAILED, record.Clip(why.Error(), moraine.MaxNameLen)
			}
		default:
			if err := m.cloneDir(t, j, c, keys[0], stop); err != nil {
				return false, err
			}
		}
	}
	j.Cursor = c.Encode()
	return false, nil
}

// endClone ends a job that is not to be published.
func (m *Machine) endClone(t *tx, j *record.Job, c *record.TreeClone) error {
	top, err := t.inode(c.Top)
	if err != nil {
		return damaged(err)
	}
	if err := m.dropTree(t, top, j.Subject); err != nil {
		return err
	}
	return m.endJob(t, j, j.Ending, j.Err)
}

// cloneDir clones the next entries of one directory.
func (m *Machine) cloneDir(t *tx, j *record.Job, c *record.TreeClone, key []byte, stop int) error {
	row := &record.ClonedDir{}
	b, _, err := t.Get(key)
	if err == nil {
		err = row.Decode(b)
	}
	if err != nil {
		return err
	}
	from := moraine.InodeID(record.LastU64(key))
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
	if gone || src.Nlink == 0 {
		if from == moraine.InodeID(j.Target) {
			j.Ending, j.Err = wire.JobState_JOB_STATE_FAILED, "the directory was removed"
			return nil
		}
		t.del(key) // removed since its name was seen: its like stays empty, or as it is
		return nil
	}
	t.mindHold(from) // its holder may have made files that are not here yet
	into, err := t.inode(row.Into)
	if err != nil {
		return damaged(err)
	}
	most := max((stop-len(t.order))/8, 1)
	names, entries, err := t.listDir(from, row.Last, most)
	if err != nil {
		return err
	}
	for n, name := range names {
		if n > 0 && len(t.order) >= stop || c.From != 0 {
			t.put(key, row.Encode())
			return nil
		}
		row.Last = name
		if name == moraine.UploadsDir {
			continue
		}
		if err := m.cloneEntry(t, j, c, into, name, entries[n], stop); err != nil {
			return err
		}
		j.Done++
	}
	if len(names) < most {
		t.del(key)
		return nil
	}
	t.put(key, row.Encode())
	return nil
}

// cloneEntry makes the like of one entry.
func (m *Machine) cloneEntry(t *tx, j *record.Job, c *record.TreeClone, into *record.Inode, name string, e record.Dentry, stop int) error {
	src, err := t.view.inode(e.Inode)
	if err != nil {
		return damaged(err)
	}
	if src.Typ == record.TypeDirectory {
		dir, err := m.likeDir(t, src, into.Tenant)
		if err != nil {
			return err
		}
		m.linkLike(t, into, name, dir)
		t.put(t.k.cloneDir(j.Id, src.Id), (&record.ClonedDir{Into: dir.Id}).Encode())
		return nil
	}
	i, err := m.like(t, src, into.Tenant)
	if err != nil {
		return err
	}
	m.linkLike(t, into, name, i)
	if src.Typ != record.TypeFile {
		return nil
	}
	c.From, c.Into, c.Generation, c.UpTo = src.Id, i.Id, src.Generation, 0
	return m.cloneMore(t, j, c, stop)
}

// linkLike gives a like its name, without a change of the directory's times.
func (m *Machine) linkLike(t *tx, dir *record.Inode, name string, child *record.Inode) {
	mtime := dir.Mtime
	m.link(t, dir, name, child)
	dir.Mtime = mtime
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
	err = t.refsFrom(content, upTo, func(r record.Ref) (bool, error) {
		over = r.Base < upTo
		return false, nil
	})
	return over, err
}

// cloneMore shares the next tables of the file under way.
func (m *Machine) cloneMore(t *tx, j *record.Job, c *record.TreeClone, stop int) error {
	src, err := t.view.inode(c.From)
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
	i, err := t.inode(c.Into)
	if err != nil {
		return damaged(err)
	}
	again := src.Generation != c.Generation
	if !again {
		if again, err = t.retabled(src.Content, c.UpTo); err != nil {
			return err
		}
	}
	if again {
		// Half of what it was is worth nothing: from the beginning.
		if err := m.discard(t, i.DropContent()); err != nil {
			return err
		}
		c.Generation, c.UpTo = src.Generation, 0
	}
	var next []record.Ref
	most := max((stop-len(t.order))/2, 1)
	err = t.refsFrom(src.Content, c.UpTo-1, func(r record.Ref) (bool, error) {
		if r.End > c.UpTo {
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
		c.UpTo = r.End
		i.Size = r.End
	}
	if len(next) > most {
		t.putInode(i)
		return nil
	}
	i.Size, i.Mtime = src.Size, src.Mtime
	if i.Level, err = t.levelBeside(src); err != nil {
		return err
	}
	i.Degraded = src.Degraded
	c.From, c.Into, c.Generation, c.UpTo = 0, 0, 0, 0
	if err := t.watchLevel(i); err != nil {
		return err
	}
	t.putInode(i)
	return nil
}

// uncloned takes the file under way out of the new tree, because its source was
// removed.
func (m *Machine) uncloned(t *tx, c *record.TreeClone) error {
	i, err := t.inode(c.Into)
	if err != nil {
		return damaged(err)
	}
	dir, err := t.inode(i.Parent)
	if err != nil {
		return damaged(err)
	}
	_, name, err := t.nameOf(i)
	if err != nil {
		return err
	}
	m.unlink(t, dir, name, i)
	c.From, c.Into, c.Generation, c.UpTo = 0, 0, 0, 0
	return m.dropName(t, i, name)
}

// publishClone gives the tree its name. why is set where it cannot have it.
func (m *Machine) publishClone(t *tx, j *record.Job, c *record.TreeClone) (why, err error) {
	top, err := t.inode(c.Top)
	if err != nil {
		return nil, damaged(err)
	}
	dir, err := t.inode(c.Parent)
	if moraineKind(err) == moraine.NotFound || err == nil && dir.Nlink == 0 {
		return fail(moraine.NotFound, "clone tree", c.Name, "the directory that it was for was removed"), nil
	}
	if err != nil {
		return nil, err
	}
	if in, err := t.inJobScope(j, dir); err != nil {
		return nil, err
	} else if !in {
		return fail(moraine.NotFound, "clone tree", c.Name, "the directory that it was for was moved"), nil
	}
	_, taken, err := t.lookup(dir.Id, c.Name)
	if err != nil {
		return nil, err
	}
	if taken {
		return fail(moraine.Exists, "clone tree", c.Name, "something else has the name now"), nil
	}
	if dir.Sealed {
		return t.immutable(dir), nil
	}
	if why := t.fitsBelow(dir.Id, top.Id); why != nil {
		if !isAnswer(why) {
			return nil, why
		}
		return why, nil
	}
	s, err := t.usageState()
	if err != nil {
		return nil, err
	}
	if s.Live != 0 {
		below, err := t.usageNow(usageKey{s.Live, top.Id})
		if err != nil {
			return nil, err
		}
		if why := t.fits(s, dir.Id, below.Add(record.Usage{Inodes: 1})); why != nil {
			if !isAnswer(why) {
				return nil, why
			}
			return why, nil
		}
	}
	m.link(t, dir, c.Name, top)
	t.putInode(top)
	if err := m.flushTree(t, top); err != nil {
		return nil, err
	}
	j.Total = j.Done
	return nil, m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}
