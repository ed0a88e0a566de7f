package tree

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// A file with several names may have some in a session's directory and some outside, and its record
// has only the newest. Jobs and objects keep names from the time when they were made, perhaps in
// another directory. A confined session sees only names and numbers of its own directory, and that
// directory shows no parent, like the root.

// All reports whether the scope is the whole namespace. A command of the leader has no scope, which
// counts as all.
func All(v *kvtx.View, sc kvtx.Scope) bool { return sc.Root == 0 || sc.Root == v.K.Top() }

// ParentIn returns an inode's parent in the scope; 0 for the root of the scope, or an inode without
// a name there.
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
	parent, _, _, err := nameBelow(v, sc.Root, i)
	return parent, err
}

// PathShown returns a path of an inode in the scope, from the namespace root,
// by a name in the scope. It is "" if the inode has none there.
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
