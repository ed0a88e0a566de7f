package state

import (
	"bytes"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A clone of a tree is a job, whose pieces the leader runs. It builds the new
// tree below a directory without a name or parent, which nobody can see: a piece
// takes the next entries of one directory of the source, makes their like, and
// passes what it has seen in the row of that directory, so that a piece that is
// run again goes on from there. The last piece gives the tree its name. Where
// that cannot be, or the job is canceled, what was built dies as a removed tree
// does.
//
// Every file is cloned as it is when its turn comes, whole: one that has more
// tables than a piece may share, and changes between two pieces, is begun anew.

// treeClone is the cursor of such a job.
type treeClone struct {
	top    moraine.InodeID // of the new tree
	parent moraine.InodeID // where it is to appear
	name   string
	// The file under way, where one has more tables than a piece shared.
	from, into moraine.InodeID
	generation moraine.Generation
	upTo       int64 // tables that end up to here are shared
}

const treeCloneVersion = 1

func (c *treeClone) encode() []byte {
	b := putFixed64(putFixed64([]byte{treeCloneVersion}, uint64(c.top)), uint64(c.parent))
	b = putFixed64(putFixed64(putString(b, c.name), uint64(c.from)), uint64(c.into))
	return putUvarint(putFixed64(b, uint64(c.generation)), uint64(c.upTo))
}

func (c *treeClone) decode(b []byte) error {
	d := dec{b: b}
	d.version(treeCloneVersion)
	c.top, c.parent, c.name = moraine.InodeID(d.fixed64()), moraine.InodeID(d.fixed64()), d.string()
	c.from, c.into = moraine.InodeID(d.fixed64()), moraine.InodeID(d.fixed64())
	c.generation, c.upTo = moraine.Generation(d.fixed64()), int64(d.uvarint())
	return d.end("clone of a tree")
}

// clonedDir is the row of a directory that the job has yet to go through.
type clonedDir struct {
	into moraine.InodeID // its like in the new tree
	last string          // name of its that was cloned last
}

func (c *clonedDir) encode() []byte {
	return putString(putFixed64([]byte{treeCloneVersion}, uint64(c.into)), c.last)
}

func (c *clonedDir) decode(b []byte) error {
	d := dec{b: b}
	d.version(treeCloneVersion)
	c.into, c.last = moraine.InodeID(d.fixed64()), d.string()
	return d.end("directory of a clone")
}

// cloneTree makes the job of a clone of a directory.
func (m *Machine) cloneTree(t *tx, op *wire.CloneTree) (*wire.MetaResponse, error) {
	ok, err := t.speaks(LevelCloneTree)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fail(moraine.Unavailable, "clone tree", op.GetName(), "the cluster's feature level does not have it: copy the files")
	}
	if err := checkName("clone tree", op.GetName()); err != nil {
		return nil, err
	}
	src, err := t.directory(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	dir, err := t.directory(moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	_, taken, err := t.lookup(dir.id, op.GetName())
	switch {
	case err != nil:
		return nil, err
	case taken:
		return nil, fail(moraine.Exists, "clone tree", op.GetName(), "")
	case src.tenant != dir.tenant:
		return nil, fail(moraine.CrossTenant, "clone tree", op.GetName(), "copy it instead")
	}
	if s, err := t.usageState(); err != nil {
		return nil, err
	} else if s.live != 0 {
		below, err := t.usageNow(usageKey{s.live, src.id})
		if err != nil {
			return nil, err
		}
		if err := t.fits(s, dir.id, below.add(usage{0, 1})); err != nil {
			return nil, err
		}
	}
	owner, err := t.jobOwner("clone tree")
	if err != nil {
		return nil, err
	}
	top, err := m.likeDir(t, src, dir.tenant)
	if err != nil {
		return nil, err
	}
	c := &treeClone{top: top.id, parent: dir.id, name: op.GetName()}
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_CLONE_TREE, subject: clip(op.GetName(), moraine.MaxNameLen), target: uint64(src.id), cursor: c.encode(), owner: owner})
	if err != nil {
		return nil, err
	}
	t.put(t.k.cloneDir(id, src.id), (&clonedDir{into: top.id}).encode())
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	return jobsReply(j), nil
}

// like makes an inode without a name that is as another one.
func (m *Machine) like(t *tx, src *inode, tenant moraine.Tenant) (*inode, error) {
	n := inode{typ: src.typ, mode: src.mode, uid: src.uid, gid: src.gid, nlink: 1, tenant: tenant, target: src.target, xattrs: src.xattrs}
	i, err := m.makeInode(t, n)
	if err != nil {
		return nil, err
	}
	i.mtime = src.mtime
	if !src.xattrs {
		return i, nil
	}
	prefix := t.k.xattrs(src.id)
	err = t.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		t.put(t.k.xattr(i.id, string(key[len(prefix):])), bytes.Clone(value))
		return true
	})
	return i, err
}

// likeDir is like of a directory; it is written.
func (m *Machine) likeDir(t *tx, src *inode, tenant moraine.Tenant) (*inode, error) {
	i, err := m.like(t, src, tenant)
	if err != nil {
		return nil, err
	}
	i.nlink = 2
	t.putInode(i)
	return i, nil
}

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
	i.level, i.degraded = min(src.level, moraine.NVMe), src.degraded
	c.from, c.into, c.generation, c.upTo = 0, 0, 0, 0
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
	_, taken, err := t.lookup(dir.id, c.name)
	if err != nil {
		return nil, err
	}
	if taken {
		return fail(moraine.Exists, "clone tree", c.name, "something else has the name now"), nil
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
		if why := t.fits(s, dir.id, below.add(usage{0, 1})); why != nil {
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

// fits fails where what would come to be below a directory goes past a quota.
// What the command itself changed before is not in it.
func (t *tx) fits(s *usageState, dir moraine.InodeID, what usage) error {
	if s.quotas == 0 {
		return nil
	}
	for dir != 0 {
		q, err := t.quota(dir)
		if err != nil {
			return err
		}
		was, err := t.usageNow(usageKey{s.live, dir})
		if err != nil {
			return err
		}
		if q.exceeded(was.add(what), what) {
			return t.overQuota(dir, q, was, was.add(what))
		}
		i, err := t.view.inode(dir)
		if err != nil {
			return err
		}
		dir = i.parent
	}
	return nil
}
