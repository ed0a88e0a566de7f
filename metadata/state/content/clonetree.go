package content

import (
	"bytes"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// CloneTree creates the job that clones a directory.
func CloneTree(t *kvtx.Tx, op *wire.CloneTree) (*wire.MetaResponse, error) {
	if err := names.CheckName("clone tree", op.GetName()); err != nil {
		return nil, err
	}
	src, err := tree.Directory(t, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	dir, err := tree.Directory(t, moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	_, taken, err := tree.Lookup(&t.View, dir.Id, op.GetName())
	switch {
	case err != nil:
		return nil, err
	case taken:
		return nil, kvtx.Fail(moraine.Exists, "clone tree", op.GetName(), "")
	case dir.Sealed:
		return nil, tree.Immutable(t, dir)
	case src.Tenant != dir.Tenant:
		return nil, kvtx.Fail(moraine.CrossTenant, "clone tree", op.GetName(), "the new directory belongs to another tenant: copy the tree instead")
	}
	if err := usage.FitsBelow(t, dir.Id, src.Id); err != nil {
		return nil, err
	}
	if s, err := usage.UsageState(&t.View); err != nil {
		return nil, err
	} else if s.Live != 0 {
		below, err := t.UsageNow(kvtx.UsageKey{Column: s.Live, Dir: src.Id})
		if err != nil {
			return nil, err
		}
		if err := fits(t, s, dir.Id, below.Add(record.Usage{Inodes: 1})); err != nil {
			return nil, err
		}
	}
	owner, err := jobs.JobOwner(t, "clone tree")
	if err != nil {
		return nil, err
	}
	c := &record.TreeClone{Parent: dir.Id, Name: op.GetName(), Snapshot: op.GetSnapshot()}
	top, err := likeDir(t, src, dir.Tenant, c.Snapshot)
	if err != nil {
		return nil, err
	}
	c.Top = top.Id
	id, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_CLONE_TREE, Subject: record.Clip(op.GetName(), moraine.MaxNameLen), Target: uint64(src.Id), Cursor: c.Encode(), Owner: owner})
	if err != nil {
		return nil, err
	}
	t.Put(t.K.CloneDir(id, src.Id), (&record.ClonedDir{Into: top.Id}).Encode())
	j, err := jobs.Job(&t.View, id)
	if err != nil {
		return nil, err
	}
	return usage.JobsReply(j), nil
}

// like makes an unlinked inode with another one's attributes.
func like(t *kvtx.Tx, src *record.Inode, tenant moraine.Tenant) (*record.Inode, error) {
	n := record.Inode{Typ: src.Typ, Mode: src.Mode, Uid: src.Uid, Gid: src.Gid, Nlink: 1, Tenant: tenant, Target: src.Target, Rdev: src.Rdev, Xattrs: src.Xattrs}
	i, err := names.MakeInode(t, n)
	if err != nil {
		return nil, err
	}
	i.Mtime = src.Mtime
	if !src.Xattrs {
		return i, nil
	}
	prefix := t.K.Xattrs(src.Id)
	err = t.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, value []byte) bool {
		t.Put(t.K.Xattr(i.Id, string(key[len(prefix):])), bytes.Clone(value))
		return true
	})
	return i, err
}

// likeDir is like for a directory, which is sealed in a snapshot; it writes the inode.
func likeDir(t *kvtx.Tx, src *record.Inode, tenant moraine.Tenant, sealed bool) (*record.Inode, error) {
	i, err := like(t, src, tenant)
	if err != nil {
		return nil, err
	}
	i.Nlink, i.Sealed = 2, sealed
	tree.PutInode(t, i)
	// Set its height now, so that entries made in it later do not raise the heights above one by
	// one.
	height, err := usage.Height(&t.View, src.Id)
	if err == nil && height != 0 {
		usage.PutHeight(t, i.Id, height)
	}
	return i, err
}

// fits fails if adding what below a directory would exceed a quota. The command's own earlier
// changes are not included.
func fits(t *kvtx.Tx, s *record.UsageState, dir moraine.InodeID, what record.Usage) error {
	if s.Quotas == 0 {
		return nil
	}
	for dir != 0 {
		q, err := usage.Quota(&t.View, dir)
		if err != nil {
			return err
		}
		was, err := t.UsageNow(kvtx.UsageKey{Column: s.Live, Dir: dir})
		if err != nil {
			return err
		}
		if q.Exceeded(was.Add(what), what) {
			return usage.OverQuota(t, dir, q, was, was.Add(what))
		}
		i, err := tree.ReadInode(&t.View, dir)
		if err != nil {
			return err
		}
		dir = i.Parent
	}
	return nil
}
