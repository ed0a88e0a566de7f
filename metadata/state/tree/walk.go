package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

const (
	// MaxSymlinks bounds how many symbolic links one walk follows.
	MaxSymlinks = 40
	// MaxPath bounds the length of a path, and of what remains of it after a
	// link was followed.
	MaxPath = 8 << 10
	// MaxListed is the most entries, extents or rows that one read returns.
	MaxListed = 1000
)

// ListLimit is how many rows to return where limit are asked for.
func ListLimit(limit uint32) int {
	if limit == 0 || limit > MaxListed {
		return MaxListed
	}
	return int(limit)
}

// ListDir returns at most limit entries of dir whose names follow after.
func ListDir(v *kvtx.View, dir moraine.InodeID, after string, limit int) ([]string, []record.Dentry, error) {
	prefix := v.K.Dentries(dir)
	lo := prefix
	if after != "" {
		lo = append(v.K.Dentry(dir, after), 0)
	}
	var names []string
	var entries []record.Dentry
	var bad error
	err := v.R.Scan(lo, kvtx.PrefixEnd(prefix), func(key, value []byte) bool {
		var e record.Dentry
		if e, bad = record.DecodeDentry(value); bad != nil {
			return false
		}
		names = append(names, string(key[len(prefix):]))
		entries = append(entries, e)
		return len(names) < limit
	})
	if err == nil {
		err = bad
	}
	return names, entries, err
}

// MaxFileSize is moraine.MaxFileSize.
const MaxFileSize = moraine.MaxFileSize

// InJobScope reports whether an inode is where the session could name it that asked for a job:
// what was moved away from there since is not the job's any more.
func InJobScope(v *kvtx.View, j *record.Job, i *record.Inode) (bool, error) {
	if j.Scope == 0 {
		return true, nil
	}
	return InScope(v, kvtx.Scope{Root: j.Scope}, i)
}

// maxPage is the most records that one answer of a list holds.
const maxPage = 1000

// PageLimit turns a limit asked for into one that is given.
func PageLimit(asked uint32) int {
	if asked == 0 || asked > maxPage {
		return maxPage
	}
	return int(asked)
}
