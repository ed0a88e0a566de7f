package tree

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// MaxLinks is the most names of one file.
const MaxLinks = 65_000

// maxNamesSeen bounds how many names of one file a look for one of them in a
// scope goes over.
const maxNamesSeen = 1024

// NameOfKey takes a key of tabName apart.
func NameOfKey(key []byte) (parent moraine.InodeID, name string) {
	return moraine.InodeID(binary.BigEndian.Uint64(key[11:])), string(key[19:])
}

// NameOf returns a name that an inode has, and its directory; "" where it has
// none. In a state that keeps no names it looks through the directory.
func NameOf(v *kvtx.View, i *record.Inode) (parent moraine.InodeID, name string, err error) {
	if i.Parent == 0 || i.Nlink == 0 {
		return 0, "", nil
	}
	if i.Name != "" {
		return i.Parent, i.Name, nil
	}
	if i.ManyLinks {
		keys, err := v.KeysUnder(v.K.Names(i.Id), 1)
		if err != nil || len(keys) == 0 {
			return 0, "", err
		}
		parent, name = NameOfKey(keys[0])
		return parent, name, nil
	}
	prefix := v.K.Dentries(i.Parent)
	var bad error
	err = v.R.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, value []byte) bool {
		var e record.Dentry
		if e, bad = record.DecodeDentry(value); bad != nil {
			return false
		}
		if e.Inode == i.Id {
			name = string(key[len(prefix):])
		}
		return name == ""
	})
	if err == nil {
		err = bad
	}
	return i.Parent, name, err
}

// NameBelow returns the first name of a file with several that is below top, and its
// directory; ok is false where there is none.
func NameBelow(v *kvtx.View, top moraine.InodeID, i *record.Inode) (parent moraine.InodeID, name string, ok bool, err error) {
	keys, err := v.KeysUnder(v.K.Names(i.Id), maxNamesSeen)
	if err != nil {
		return 0, "", false, err
	}
	var last moraine.InodeID
	for _, key := range keys {
		parent, name := NameOfKey(key)
		if parent == last {
			continue
		}
		last = parent
		if ok, err := Below(v, top, parent); ok || err != nil {
			return parent, name, ok, err
		}
	}
	return 0, "", false, nil
}

// PathBelow returns the path of an inode from the directory top, by one of its
// names, "" for top itself; false where it is not below it.
func PathBelow(r *kvtx.View, top, id moraine.InodeID) (path string, below bool, err error) {
	return PathUnder(r, top, id)
}

func PathUnder(v *kvtx.View, top, id moraine.InodeID) (path string, below bool, err error) {
	for depth := 0; id != top; depth++ {
		i, err := ReadInode(v, id)
		if kvtx.MoraineKind(err) == moraine.NotFound || depth > kvtx.MaxDepth {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		parent, name, err := NameOf(v, i)
		if depth == 0 && i.ManyLinks && i.Nlink > 1 && top != v.K.Top() {
			parent, name, _, err = NameBelow(v, top, i) // the newest may be elsewhere
		}
		if err != nil || name == "" {
			return "", false, err
		}
		if path == "" {
			path = name
		} else {
			path = name + "/" + path
		}
		id = parent
	}
	return path, true, nil
}

// PathOf returns the path of an inode from the root, without a slash before it;
// false where nothing leads there from the root.
func PathOf(v *kvtx.View, i *record.Inode) (path string, ok bool, err error) {
	for depth := 0; i.Id != v.K.Top(); depth++ {
		parent, name, err := NameOf(v, i)
		if err != nil || name == "" || depth > kvtx.MaxDepth {
			return "", false, err
		}
		if path == "" {
			path = name
		} else {
			path = name + "/" + path
		}
		if i, err = ReadInode(v, parent); err != nil {
			return "", false, kvtx.Damaged(err)
		}
	}
	return path, true, nil
}
