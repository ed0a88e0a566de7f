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
	case dir.sealed:
		return nil, t.immutable(dir)
	case src.tenant != dir.tenant:
		return nil, fail(moraine.CrossTenant, "clone tree", op.GetName(), "copy it instead")
	}
	if err := t.fitsBelow(dir.id, src.id); err != nil {
		return nil, err
	}
	if s, err := t.usageState(); err != nil {
		return nil, err
	} else if s.live != 0 {
		below, err := t.usageNow(usageKey{s.live, src.id})
		if err != nil {
			return nil, err
		}
		if err := t.fits(s, dir.id, below.add(usage{inodes: 1})); err != nil {
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
	// It is to be as high, so that none above is raised for each that is made in it.
	height, err := t.height(src.id)
	if err == nil && height != 0 {
		t.putHeight(i.id, height)
	}
	return i, err
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
