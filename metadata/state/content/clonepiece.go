package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// RunCloneTree does about limit records of a clone. It returns true if the job has ended; otherwise
// the caller writes the job.
func RunCloneTree(t *kvtx.Tx, j *record.Job, limit int) (over bool, err error) {
	c := &record.TreeClone{}
	if err := c.Decode(j.Cursor); err != nil {
		return false, err
	}
	t.OpenAll = c.Snapshot // the job builds what it seals
	stop := len(t.Order) + limit
	for len(t.Order) < stop {
		keys, err := t.KeysUnder(t.K.CloneDirs(j.Id), 1)
		if err != nil {
			return false, err
		}
		switch {
		case j.Ending != 0 && len(keys) > 0:
			t.Del(keys[0])
		case j.Ending != 0:
			return true, endClone(t, j, c)
		case c.From != 0:
			if err := cloneMore(t, j, &c.FileClone, stop); err != nil {
				return false, err
			}
		case len(keys) == 0:
			if why, err := publishClone(t, j, c); err != nil || why == nil {
				return err == nil, err
			} else {
				j.Ending, j.Err = wire.JobState_JOB_STATE_FAILED, record.Clip(why.Error(), moraine.MaxNameLen)
			}
		default:
			if err := cloneDir(t, j, c, keys[0], stop); err != nil {
				return false, err
			}
		}
	}
	j.Cursor = c.Encode()
	return false, nil
}

// endClone ends a job that will not be published.
func endClone(t *kvtx.Tx, j *record.Job, c *record.TreeClone) error {
	top, err := tree.Inode(t, c.Top)
	if err != nil {
		return kvtx.Damaged(err)
	}
	if err := names.DropTree(t, top, j.Subject); err != nil {
		return err
	}
	return jobs.EndJob(t, j, j.Ending, j.Err)
}

// cloneDir clones the next entries of one directory.
func cloneDir(t *kvtx.Tx, j *record.Job, c *record.TreeClone, key []byte, stop int) error {
	row := &record.ClonedDir{}
	b, _, err := t.Get(key)
	if err == nil {
		err = row.Decode(b)
	}
	if err != nil {
		return err
	}
	from := moraine.InodeID(record.LastU64(key))
	src, err := tree.ReadInode(&t.View, from)
	gone := kvtx.MoraineKind(err) == moraine.NotFound
	if err != nil && !gone {
		return err
	}
	if !gone {
		in, err := tree.InJobScope(&t.View, j, src)
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
		t.Del(key) // the source was removed after its name was listed: the copy stays empty or as it is
		return nil
	}
	into, err := tree.Inode(t, row.Into)
	if err != nil {
		return kvtx.Damaged(err)
	}
	most := max((stop-len(t.Order))/8, 1)
	names, entries, err := tree.ListDir(&t.View, from, row.Last, most)
	if err != nil {
		return err
	}
	for n, name := range names {
		if n > 0 && len(t.Order) >= stop || c.From != 0 {
			t.Put(key, row.Encode())
			return nil
		}
		row.Last = name
		if entries[n].Typ == record.TypeDirectory && moraine.IsReserved(name) {
			continue
		}
		if err := cloneEntry(t, j, c, into, name, entries[n], stop); err != nil {
			return err
		}
		j.Done++
	}
	if len(names) < most {
		t.Del(key)
		return nil
	}
	t.Put(key, row.Encode())
	return nil
}

// cloneEntry makes the copy of one entry.
func cloneEntry(t *kvtx.Tx, j *record.Job, c *record.TreeClone, into *record.Inode, name string, e record.Dentry, stop int) error {
	src, err := tree.ReadInode(&t.View, e.Inode)
	if err != nil {
		return kvtx.Damaged(err)
	}
	if src.Typ == record.TypeDirectory {
		dir, err := likeDir(t, src, into.Tenant, c.Snapshot)
		if err != nil {
			return err
		}
		linkLike(t, into, name, dir)
		t.Put(t.K.CloneDir(j.Id, src.Id), (&record.ClonedDir{Into: dir.Id}).Encode())
		return nil
	}
	i, err := like(t, src, into.Tenant)
	if err != nil {
		return err
	}
	i.Sealed = c.Snapshot
	linkLike(t, into, name, i)
	if src.Typ != record.TypeFile {
		return nil
	}
	c.From, c.Into, c.Generation, c.UpTo = src.Id, i.Id, src.Generation, 0
	return cloneMore(t, j, &c.FileClone, stop)
}

// linkLike gives a copy its name without changing the directory's times.
func linkLike(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) {
	mtime := dir.Mtime
	names.Link(t, dir, name, child)
	dir.Mtime = mtime
	tree.PutInode(t, dir)
	tree.PutInode(t, child)
}

// retabled reports whether a table of a content reaches over the offset up to which tables were
// shared. Eviction and staging change tables but not the generation.
func retabled(t *kvtx.Tx, content uint64, upTo int64) (over bool, err error) {
	err = layout.RefsFrom(&t.View, content, upTo, func(r record.Ref) (bool, error) {
		over = r.Base < upTo
		return false, nil
	})
	return over, err
}

// cloneMore shares the next tables of the file in progress.
func cloneMore(t *kvtx.Tx, j *record.Job, c *record.FileClone, stop int) error {
	src, err := tree.ReadInode(&t.View, c.From)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return uncloned(t, c)
	}
	if err != nil {
		return err
	}
	if in, err := tree.InJobScope(&t.View, j, src); err != nil {
		return err
	} else if !in {
		return uncloned(t, c)
	}
	if err := tree.RaiseStepOf(t, src); err != nil {
		return err
	}
	i, err := tree.Inode(t, c.Into)
	if err != nil {
		return kvtx.Damaged(err)
	}
	again := src.Generation != c.Generation
	if !again {
		if again, err = retabled(t, src.Content, c.UpTo); err != nil {
			return err
		}
	}
	if again {
		// A part of the former version is useless: start again.
		if err := layout.Discard(t, i.DropContent()); err != nil {
			return err
		}
		c.Generation, c.UpTo = src.Generation, 0
	}
	var next []record.Ref
	most := max((stop-len(t.Order))/2, 1)
	err = layout.RefsFrom(&t.View, src.Content, c.UpTo-1, func(r record.Ref) (bool, error) {
		if r.End > c.UpTo {
			next = append(next, r)
		}
		return len(next) <= most, nil
	})
	if err != nil {
		return err
	}
	for _, r := range next[:min(len(next), most)] {
		if err := shareTable(t, i, r); err != nil {
			return err
		}
		c.UpTo = r.End
		i.Size = r.End
	}
	if len(next) > most {
		tree.PutInode(t, i)
		return nil
	}
	i.Size, i.Mtime = src.Size, src.Mtime
	if i.Level, err = layout.LevelBeside(&t.View, src); err != nil {
		return err
	}
	i.Degraded = src.Degraded
	c.From, c.Into, c.Generation, c.UpTo = 0, 0, 0, 0
	watchLevel(t, i)
	tree.PutInode(t, i)
	return nil
}

// uncloned removes the file in progress from the new tree because its source was removed.
func uncloned(t *kvtx.Tx, c *record.FileClone) error {
	i, err := tree.Inode(t, c.Into)
	if err != nil {
		return kvtx.Damaged(err)
	}
	dir, err := tree.Inode(t, i.Parent)
	if err != nil {
		return kvtx.Damaged(err)
	}
	name := i.Name
	names.Unlink(t, dir, name, i)
	c.From, c.Into, c.Generation, c.UpTo = 0, 0, 0, 0
	return names.DropName(t, i, name)
}

// publishClone names the tree. why says why it cannot have the name; err is a failure of the state.
func publishClone(t *kvtx.Tx, j *record.Job, c *record.TreeClone) (why, err error) {
	top, err := tree.Inode(t, c.Top)
	if err != nil {
		return nil, kvtx.Damaged(err)
	}
	dir, err := tree.Inode(t, c.Parent)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && dir.Nlink == 0 {
		return kvtx.Fail(moraine.NotFound, "clone tree", c.Name, "the target directory was removed"), nil
	}
	if err != nil {
		return nil, err
	}
	if in, err := tree.InJobScope(&t.View, j, dir); err != nil {
		return nil, err
	} else if !in {
		return kvtx.Fail(moraine.NotFound, "clone tree", c.Name, "the target directory was moved out of the session's scope"), nil
	}
	_, taken, err := tree.Lookup(&t.View, dir.Id, c.Name)
	if err != nil {
		return nil, err
	}
	if taken {
		return kvtx.Fail(moraine.Exists, "clone tree", c.Name, "another entry has the name now"), nil
	}
	if dir.Sealed {
		return tree.Immutable(t, dir), nil
	}
	if why := usage.FitsBelow(t, dir.Id, top.Id); why != nil {
		if !kvtx.IsAnswer(why) {
			return nil, why
		}
		return why, nil
	}
	s, err := usage.UsageState(&t.View)
	if err != nil {
		return nil, err
	}
	if s.Live != 0 {
		below, err := t.UsageNow(kvtx.UsageKey{Column: s.Live, Dir: top.Id})
		if err != nil {
			return nil, err
		}
		if why := fits(t, s, dir.Id, below.Add(record.Usage{Inodes: 1})); why != nil {
			if !kvtx.IsAnswer(why) {
				return nil, why
			}
			return why, nil
		}
	}
	names.Link(t, dir, c.Name, top)
	tree.PutInode(t, top)
	if err := names.FlushTree(t, top); err != nil {
		return nil, err
	}
	j.Total = j.Done
	return nil, jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}
