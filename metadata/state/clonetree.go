package state

import (
	"bytes"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

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
	_, taken, err := t.lookup(dir.Id, op.GetName())
	switch {
	case err != nil:
		return nil, err
	case taken:
		return nil, fail(moraine.Exists, "clone tree", op.GetName(), "")
	case dir.Sealed:
		return nil, t.immutable(dir)
	case src.Tenant != dir.Tenant:
		return nil, fail(moraine.CrossTenant, "clone tree", op.GetName(), "copy it instead")
	}
	if err := t.fitsBelow(dir.Id, src.Id); err != nil {
		return nil, err
	}
	if s, err := t.usageState(); err != nil {
		return nil, err
	} else if s.Live != 0 {
		below, err := t.usageNow(usageKey{s.Live, src.Id})
		if err != nil {
			return nil, err
		}
		if err := t.fits(s, dir.Id, below.Add(record.Usage{Inodes: 1})); err != nil {
			return nil, err
		}
	}
	owner, err := t.jobOwner("clone tree")
	if err != nil {
		return nil, err
	}
	top, err := m.likeDir(t, src, dir.Tenant)
	if err != nil {
		return nil, err
	}
	c := &record.TreeClone{Top: top.Id, Parent: dir.Id, Name: op.GetName()}
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_CLONE_TREE, subject: record.Clip(op.GetName(), moraine.MaxNameLen), target: uint64(src.Id), cursor: c.Encode(), owner: owner})
	if err != nil {
		return nil, err
	}
	t.put(t.k.cloneDir(id, src.Id), (&record.ClonedDir{Into: top.Id}).Encode())
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	return jobsReply(j), nil
}

// like makes an inode without a name that is as another one.
func (m *Machine) like(t *tx, src *record.Inode, tenant moraine.Tenant) (*record.Inode, error) {
	n := record.Inode{Typ: src.Typ, Mode: src.Mode, Uid: src.Uid, Gid: src.Gid, Nlink: 1, Tenant: tenant, Target: src.Target, Xattrs: src.Xattrs}
	i, err := m.makeInode(t, n)
	if err != nil {
		return nil, err
	}
	i.Mtime = src.Mtime
	if !src.Xattrs {
		return i, nil
	}
	prefix := t.k.xattrs(src.Id)
	err = t.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		t.put(t.k.xattr(i.Id, string(key[len(prefix):])), bytes.Clone(value))
		return true
	})
	return i, err
}

// likeDir is like of a directory; it is written.
func (m *Machine) likeDir(t *tx, src *record.Inode, tenant moraine.Tenant) (*record.Inode, error) {
	i, err := m.like(t, src, tenant)
	if err != nil {
		return nil, err
	}
	i.Nlink = 2
	t.putInode(i)
	// It is to be as high, so that none above is raised for each that is made in it.
	height, err := t.height(src.Id)
	if err == nil && height != 0 {
		t.putHeight(i.Id, height)
	}
	return i, err
}

// fits fails where what would come to be below a directory goes past a quota.
// What the command itself changed before is not in it.
func (t *tx) fits(s *record.UsageState, dir moraine.InodeID, what record.Usage) error {
	if s.Quotas == 0 {
		return nil
	}
	for dir != 0 {
		q, err := t.quota(dir)
		if err != nil {
			return err
		}
		was, err := t.usageNow(usageKey{s.Live, dir})
		if err != nil {
			return err
		}
		if q.Exceeded(was.Add(what), what) {
			return t.overQuota(dir, q, was, was.Add(what))
		}
		i, err := t.view.inode(dir)
		if err != nil {
			return err
		}
		dir = i.Parent
	}
	return nil
}
