package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

const (
	// MaxSymlinks bounds how many symbolic links one walk follows.
	MaxSymlinks = 40
	// MaxPath bounds the length of a path, and of its rest after a link was followed, in bytes.
	MaxPath = 8 << 10
	// MaxListed is the largest number of entries, extents or rows that one read returns.
	MaxListed = 1000
)

// ListLimit returns the number of rows to return for a requested limit.
func ListLimit(limit uint32) int {
	if limit == 0 || limit > MaxListed {
		return MaxListed
	}
	return int(limit)
}

// ListDir returns at most limit entries of dir whose names come after after.
func ListDir(v *kvtx.View, dir moraine.InodeID, after string, limit int) ([]string, []record.Dentry, error) {
	prefix := v.K.Dentries(dir)
	lo := prefix
	if after != "" {
		lo = append(v.K.Dentry(dir, after), 0)
	}
	var names []string
	var entries []record.Dentry
	err := v.Each(lo, kvtx.PrefixEnd(prefix), func(key, value []byte) (bool, error) {
		e, err := record.DecodeDentry(value)
		if err != nil {
			return false, err
		}
		names = append(names, string(key[len(prefix):]))
		entries = append(entries, e)
		return len(names) < limit, nil
	})
	return names, entries, err
}

// MaxFileSize is moraine.MaxFileSize.
const MaxFileSize = moraine.MaxFileSize

// InJobScope reports whether the session that requested a job could name the inode now. An inode
// moved away since no longer concerns the job.
func InJobScope(v *kvtx.View, j *record.Job, i *record.Inode) (bool, error) {
	if j.Scope == 0 {
		return true, nil
	}
	return InScope(v, kvtx.Scope{Root: j.Scope}, i)
}

// maxPage is the largest number of records in one page of a list.
const maxPage = 1000

// PageLimit returns the page size for a requested limit.
func PageLimit(asked uint32) int {
	if asked == 0 || asked > maxPage {
		return maxPage
	}
	return int(asked)
}
