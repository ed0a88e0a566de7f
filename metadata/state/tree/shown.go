package tree

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// A file with several names may have some inside the directory of a session and some outside,
// and its record has one of them: the newest. Jobs and objects have names that a file had when
// they were made, perhaps in another directory. A confined session is shown names and numbers
// of its own directory only, and that directory has no parent, as the root has none.

// All reports whether the scope is the whole namespace. A command of the leader has none.
func All(v *kvtx.View, sc kvtx.Scope) bool { return sc.Root == 0 || sc.Root == v.K.Top() }

// ParentIn returns the directory that an inode in the scope has as parent there. 0: it is the
// root of the scope, or has no name.
func ParentIn(v *kvtx.View, sc kvtx.Scope, i *record.Inode) (moraine.InodeID, error) {
	switch {
	case All(v, sc):
		return i.Parent, nil
	case i.Id == sc.Root:
		return 0, nil
	case !i.ManyLinks || i.Nlink < 2:
		return i.Parent, nil // its only name
	}
	if ok, err := Below(v, sc.Root, i.Parent); ok || err != nil {
		return i.Parent, err
	}
	parent, _, _, err := NameBelow(v, sc.Root, i)
	return parent, err
}

// PathShown returns the path of an inode in the scope, from the root of the namespace on, by a
// name that it has there; "" where it has none.
func PathShown(v *kvtx.View, sc kvtx.Scope, i *record.Inode) (string, error) {
	if All(v, sc) {
		path, _, err := PathOf(v, i)
		return path, err
	}
	below, ok, err := PathUnder(v, sc.Root, i.Id)
	if err != nil || !ok {
		return "", err
	}
	root, err := ReadInode(v, sc.Root)
	if err != nil {
		return "", err
	}
	above, ok, err := PathOf(v, root)
	if err != nil || !ok {
		return "", err
	}
	return strings.TrimSuffix(above+"/"+below, "/"), nil
}
