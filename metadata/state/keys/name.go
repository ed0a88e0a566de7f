package keys

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// nameKeys are the keys of inodes and entries, and of what directories have: heights, usage counts,
// quotas and policies.
type nameKeys struct{ partition }

func (k nameKeys) Inode(i moraine.InodeID) []byte { return k.U64(record.TabInode, uint64(i)) }

func (k nameKeys) Dentries(dir moraine.InodeID) []byte { return k.U64(record.TabDentry, uint64(dir)) }

func (k nameKeys) Dentry(dir moraine.InodeID, name string) []byte {
	return append(record.Be64(k.Key(record.TabDentry, 8+len(name)), uint64(dir)), name...)
}

func (k nameKeys) Names(i moraine.InodeID) []byte { return k.U64(record.TabName, uint64(i)) }

func (k nameKeys) Name(i, parent moraine.InodeID, name string) []byte {
	return append(record.Be64(record.Be64(k.Key(record.TabName, 16+len(name)), uint64(i)), uint64(parent)), name...)
}

func (k nameKeys) Xattrs(i moraine.InodeID) []byte { return k.U64(record.TabXattr, uint64(i)) }

func (k nameKeys) Xattr(i moraine.InodeID, name string) []byte {
	return append(record.Be64(k.Key(record.TabXattr, 8+len(name)), uint64(i)), name...)
}

func (k nameKeys) Locks(i moraine.InodeID) []byte { return k.U64(record.TabLock, uint64(i)) }

func (k nameKeys) DetachedOf(j moraine.JobID) []byte { return k.U64(record.TabDetached, uint64(j)) }

func (k nameKeys) Detached(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabDetached, uint64(j), uint64(i))
}

func (k nameKeys) Height(dir moraine.InodeID) []byte { return k.U64(record.TabHeight, uint64(dir)) }

func (k nameKeys) UsageColumn(column uint8) []byte { return append(k.Key(record.TabUsage, 1), column) }

func (k nameKeys) Usage(column uint8, dir moraine.InodeID) []byte {
	return record.Be64(append(k.Key(record.TabUsage, 9), column), uint64(dir))
}

func (k nameKeys) Quota(dir moraine.InodeID) []byte { return k.U64(record.TabQuota, uint64(dir)) }

func (k nameKeys) Policy(dir moraine.InodeID) []byte { return k.U64(record.TabPolicy, uint64(dir)) }
