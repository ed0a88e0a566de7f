package ckpt

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// nextBelow is nextFile within a budget of directories without files.
func nextBelow(v *kvtx.View, dir moraine.InodeID, after string, budget *int) (found, *refusal, error) {
	first, rest, deeper := strings.Cut(after, "/")
	if deeper {
		e, ok, err := tree.Lookup(v, dir, first)
		if err != nil {
			return found{}, nil, err
		}
		if ok && e.Typ == record.TypeDirectory {
			f, why, err := nextBelow(v, e.Inode, rest, budget)
			if f.inode != nil || why != nil || err != nil {
				f.path = first + "/" + f.path
				return f, why, err
			}
		}
	}
	for {
		const page = 4 // the first is most often a file
		list, entries, err := tree.ListDir(v, dir, first, page)
		if err != nil {
			return found{}, nil, err
		}
		for n, name := range list {
			f, why, err := firstOf(v, name, entries[n], budget)
			if f.inode != nil || why != nil || err != nil {
				return f, why, err
			}
		}
		if len(list) < page {
			return found{}, nil, nil
		}
		first = list[len(list)-1]
	}
}

// firstOf returns the first file at or below an entry.
func firstOf(v *kvtx.View, name string, e record.Dentry, budget *int) (found, *refusal, error) {
	switch {
	case name == moraine.UploadsDir:
		return found{}, nil, nil
	case e.Typ == record.TypeFile:
		i, err := tree.ReadInode(v, e.Inode)
		if err != nil {
			return found{}, nil, kvtx.Damaged(err)
		}
		return found{name, i}, nil, nil
	case e.Typ != record.TypeDirectory:
		return found{}, refuse(moraine.InvalidArgument, "%s is a symbolic link or a special file: a step has files only", name), nil
	}
	if *budget--; *budget < 0 {
		return found{}, refuse(moraine.TooLarge, "the directory has more than %d directories without files", maxEmptyDirs), nil
	}
	f, why, err := nextBelow(v, e.Inode, "", budget)
	f.path = name + "/" + f.path
	return f, why, err
}
