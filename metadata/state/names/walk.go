package names

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// ReadAttr answers the attributes of an inode in the scope.
func ReadAttr(v *kvtx.View, sc kvtx.Scope, op *wire.GetAttr) (*wire.MetaResponse, error) {
	i, err := tree.ReadInode(v, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	tree.SawAttr(v, i)
	return tree.CachedReply(i), tree.Within(v, sc, i)
}

// dirForRead returns the directory id, which must be in the scope.
func dirForRead(v *kvtx.View, sc kvtx.Scope, id moraine.InodeID) (*record.Inode, error) {
	dir, err := tree.ReadNamed(v, sc, id)
	if err != nil {
		return nil, err
	}
	if dir.Typ != record.TypeDirectory {
		return nil, kvtx.Fail(moraine.NotDirectory, "directory", id.String(), "")
	}
	return dir, nil
}

// ReadLookup answers the inode under a name in a directory.
func ReadLookup(v *kvtx.View, sc kvtx.Scope, op *wire.Lookup) (*wire.MetaResponse, error) {
	dir, err := dirForRead(v, sc, moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	e, ok, err := tree.Lookup(v, dir.Id, op.GetName())
	if err != nil {
		return nil, err
	}
	tree.SawEntry(v, dir.Id, op.GetName())
	if !ok {
		return nil, kvtx.Fail(moraine.NotFound, "lookup", op.GetName(), "")
	}
	i, err := tree.ReadInode(v, e.Inode)
	if err != nil {
		return nil, err
	}
	tree.SawAttr(v, i)
	return tree.CachedReply(i), nil
}

// walker is the state of a walk along a path.
type walker struct {
	v      *kvtx.View
	sc     kvtx.Scope
	follow bool
	at     *record.Inode // the inode reached so far: a directory, unless the path is at its end
	parent moraine.InodeID
	name   string
	links  int
	steps  []*wire.WalkStep
}

// ReadWalk answers the inodes along a path and follows symbolic links.
func ReadWalk(v *kvtx.View, sc kvtx.Scope, op *wire.Walk) (*wire.MetaResponse, error) {
	if len(op.GetPath()) > tree.MaxPath {
		return nil, kvtx.Fail(moraine.NameTooLong, "walk", "", "the path has %d bytes, %d at most", len(op.GetPath()), tree.MaxPath)
	}
	from := moraine.InodeID(op.GetFrom())
	if from == 0 {
		from = sc.Root
	}
	at, err := tree.ReadInode(v, from)
	if err != nil {
		return nil, err
	}
	if err := tree.Within(v, sc, at); err != nil {
		return nil, err
	}
	w := walker{v: v, sc: sc, follow: op.GetFollow(), at: at, parent: at.Parent}
	found, err := w.walk(op.GetPath())
	if err != nil {
		return nil, err
	}
	reply := &wire.WalkReply{Parent: uint64(w.parent), Name: w.name, Found: found}
	if found {
		tree.SawAttr(v, w.at)
		reply.Attr = w.at.CachedAttr()
	}
	if op.GetSteps() {
		reply.Steps = w.steps
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Walk{Walk: reply}}, nil
}

// walk follows path from w.at. It returns false if only the last component is missing.
func (w *walker) walk(path string) (bool, error) {
	for name, rest := moraine.NextName(path); name != ""; name, rest = moraine.NextName(rest) {
		last, _ := moraine.NextName(rest)
		if w.at.Typ != record.TypeDirectory {
			return false, kvtx.Fail(moraine.NotDirectory, "walk", w.name, "")
		}
		if name == ".." {
			if err := w.up(); err != nil {
				return false, err
			}
			continue
		}
		e, ok, err := tree.Lookup(w.v, w.at.Id, name)
		if err != nil {
			return false, err
		}
		tree.SawEntry(w.v, w.at.Id, name)
		if !ok {
			w.steps = append(w.steps, &wire.WalkStep{Parent: uint64(w.at.Id), Name: name})
			if last != "" {
				return false, kvtx.Fail(moraine.NotFound, "walk", name, "")
			}
			w.parent, w.name = w.at.Id, name
			return false, nil
		}
		child, err := tree.ReadInode(w.v, e.Inode)
		if err != nil {
			return false, err
		}
		tree.SawAttr(w.v, child)
		w.steps = append(w.steps, &wire.WalkStep{Parent: uint64(w.at.Id), Name: name, Attr: child.CachedAttr()})
		if child.Typ == record.TypeSymlink && (last != "" || w.follow) {
			if rest, err = w.link(child, name, rest); err != nil {
				return false, err
			}
			continue
		}
		w.parent, w.name, w.at = w.at.Id, name, child
	}
	return true, nil
}

// up goes to the parent. The scope's root is its own parent.
func (w *walker) up() error {
	if w.at.Id == w.sc.Root || w.at.Parent == 0 {
		return nil
	}
	tree.SawAttr(w.v, w.at)
	dir, err := tree.ReadInode(w.v, w.at.Parent)
	if err != nil {
		return err
	}
	w.at, w.parent, w.name = dir, dir.Parent, ""
	return nil
}

// link puts a symbolic link's target before the rest of the path. An absolute target starts at the
// scope's root.
func (w *walker) link(child *record.Inode, name, rest string) (string, error) {
	if w.links++; w.links > tree.MaxSymlinks {
		return "", kvtx.Fail(moraine.InvalidArgument, "walk", name, "the path has more than %d symbolic links", tree.MaxSymlinks)
	}
	if strings.HasPrefix(child.Target, "/") {
		root, err := tree.ReadInode(w.v, w.sc.Root)
		if err != nil {
			return "", err
		}
		w.at, w.parent, w.name = root, root.Parent, ""
	}
	path := child.Target + "/" + rest
	if len(path) > tree.MaxPath {
		return "", kvtx.Fail(moraine.NameTooLong, "walk", name, "its symbolic links make the path longer than %d bytes", tree.MaxPath)
	}
	return path, nil
}
