package tree

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// MaxLinks is the largest number of names of one file.
const MaxLinks = 65_000

// maxNamesSeen bounds how many names of one file a search for one in a scope inspects.
const maxNamesSeen = 1024

// NameOfKey splits a key of TabName.
func NameOfKey(key []byte) (parent moraine.InodeID, name string) {
	return moraine.InodeID(binary.BigEndian.Uint64(key[11:])), string(key[19:])
}

// nameBelow returns the first name below top of a file with several names, and its directory; ok is
// false if there is none.
func nameBelow(v *kvtx.View, top moraine.InodeID, i *record.Inode) (parent moraine.InodeID, name string, ok bool, err error) {
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

// PathBelow returns a path of an inode from the directory top, "" for top itself; false if the
// inode is not below it.
func PathBelow(r *kvtx.View, top, id moraine.InodeID) (path string, below bool, err error) {
	return PathUnder(r, top, id)
}

// PathUnder is PathBelow.
func PathUnder(v *kvtx.View, top, id moraine.InodeID) (path string, below bool, err error) {
	for depth := 0; id != top; depth++ {
		i, err := Ancestor(v, id)
		if kvtx.MoraineKind(err) == moraine.NotFound || depth > kvtx.MaxDepth {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		parent, name := i.Parent, i.Name
		if depth == 0 && i.ManyLinks && i.Nlink > 1 && top != v.K.Top() {
			parent, name, _, err = nameBelow(v, top, i) // the newest name may be elsewhere
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

// PathOf returns a path of an inode from the root, without a leading slash; false if the root does
// not lead to it.
func PathOf(v *kvtx.View, i *record.Inode) (path string, ok bool, err error) {
	for depth := 0; i.Id != v.K.Top(); depth++ {
		if i.Name == "" || depth > kvtx.MaxDepth {
			return "", false, nil
		}
		if path == "" {
			path = i.Name
		} else {
			path = i.Name + "/" + path
		}
		if i, err = Ancestor(v, i.Parent); err != nil {
			return "", false, kvtx.Damaged(err)
		}
	}
	return path, true, nil
}
