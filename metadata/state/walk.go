package state

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxSymlinks bounds how many symbolic links one walk follows.
	maxSymlinks = 40
	// maxPath bounds the length of a path, and of what remains of it after a
	// link was followed.
	maxPath = 8 << 10
	// MaxListed is the most entries, extents or rows that one read returns.
	MaxListed = 1000
)

func (v *view) readAttr(sc scope, op *wire.GetAttr) (*wire.MetaResponse, error) {
	i, err := v.inode(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	v.sawAttr(i)
	return cachedReply(i), v.within(sc, i)
}

// dirForRead returns the directory id, in scope.
func (v *view) dirForRead(sc scope, id moraine.InodeID) (*record.Inode, error) {
	dir, err := v.named(sc, id)
	if err != nil {
		return nil, err
	}
	if dir.Typ != record.TypeDirectory {
		return nil, fail(moraine.NotDirectory, "directory", id.String(), "")
	}
	return dir, nil
}

func (v *view) readLookup(sc scope, op *wire.Lookup) (*wire.MetaResponse, error) {
	dir, err := v.dirForRead(sc, moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	e, ok, err := v.lookup(dir.Id, op.GetName())
	if err != nil {
		return nil, err
	}
	v.sawEntry(dir.Id, op.GetName())
	if !ok {
		return nil, fail(moraine.NotFound, "lookup", op.GetName(), "")
	}
	i, err := v.inode(e.Inode)
	if err != nil {
		return nil, err
	}
	v.sawAttr(i)
	return cachedReply(i), nil
}

func (v *view) readDir(sc scope, op *wire.ReadDir) (*wire.MetaResponse, error) {
	dir, err := v.dirForRead(sc, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	names, entries, err := v.listDir(dir.Id, op.GetAfter(), listLimit(op.GetLimit())+1)
	if err != nil {
		return nil, err
	}
	reply := &wire.ReadDirReply{}
	if limit := listLimit(op.GetLimit()); len(names) > limit {
		names, reply.More = names[:limit], true
	}
	v.sawAttr(dir) // each change of its entries changes it too
	reply.Entries = make([]*wire.DirEntry, len(names))
	for n, name := range names {
		i, err := v.inode(entries[n].Inode)
		if err != nil {
			return nil, err
		}
		v.sawAttr(i)
		reply.Entries[n] = &wire.DirEntry{Name: name, Attr: i.CachedAttr()}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_ReadDir{ReadDir: reply}}, nil
}

// listLimit is how many rows to return where limit are asked for.
func listLimit(limit uint32) int {
	if limit == 0 || limit > MaxListed {
		return MaxListed
	}
	return int(limit)
}

// listDir returns at most limit entries of dir whose names follow after.
func (v *view) listDir(dir moraine.InodeID, after string, limit int) ([]string, []record.Dentry, error) {
	prefix := v.k.dentries(dir)
	lo := prefix
	if after != "" {
		lo = append(v.k.dentry(dir, after), 0)
	}
	var names []string
	var entries []record.Dentry
	var bad error
	err := v.r.Scan(lo, prefixEnd(prefix), func(key, value []byte) bool {
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

// walker is a walk under way.
type walker struct {
	v      *view
	sc     scope
	follow bool
	at     *record.Inode // reached so far; a directory, unless the path is at its end
	parent moraine.InodeID
	name   string
	links  int
	steps  []*wire.WalkStep
}

func (v *view) readWalk(sc scope, op *wire.Walk) (*wire.MetaResponse, error) {
	if len(op.GetPath()) > maxPath {
		return nil, fail(moraine.NameTooLong, "walk", "", "a path of %d bytes, %d at most", len(op.GetPath()), maxPath)
	}
	from := moraine.InodeID(op.GetFrom())
	if from == 0 {
		from = sc.root
	}
	at, err := v.inode(from)
	if err != nil {
		return nil, err
	}
	if err := v.within(sc, at); err != nil {
		return nil, err
	}
	w := walker{v: v, sc: sc, follow: op.GetFollow(), at: at, parent: at.Parent}
	found, err := w.walk(op.GetPath())
	if err != nil {
		return nil, err
	}
	reply := &wire.WalkReply{Parent: uint64(w.parent), Name: w.name, Found: found}
	if found {
		v.sawAttr(w.at)
		reply.Attr = w.at.CachedAttr()
	}
	if op.GetSteps() {
		reply.Steps = w.steps
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Walk{Walk: reply}}, nil
}

// walk goes down path from w.at. It returns false where only the last
// component is missing.
func (w *walker) walk(path string) (bool, error) {
	for name, rest := moraine.NextName(path); name != ""; name, rest = moraine.NextName(rest) {
		last, _ := moraine.NextName(rest)
		if w.at.Typ != record.TypeDirectory {
			return false, fail(moraine.NotDirectory, "walk", w.name, "")
		}
		if name == ".." {
			if err := w.up(); err != nil {
				return false, err
			}
			continue
		}
		e, ok, err := w.v.lookup(w.at.Id, name)
		if err != nil {
			return false, err
		}
		w.v.sawEntry(w.at.Id, name)
		if !ok {
			w.steps = append(w.steps, &wire.WalkStep{Parent: uint64(w.at.Id), Name: name})
			if last != "" {
				return false, fail(moraine.NotFound, "walk", name, "")
			}
			w.parent, w.name = w.at.Id, name
			return false, nil
		}
		child, err := w.v.inode(e.Inode)
		if err != nil {
			return false, err
		}
		w.v.sawAttr(child)
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

// up goes to the parent; the root of the scope is its own.
func (w *walker) up() error {
	if w.at.Id == w.sc.root || w.at.Parent == 0 {
		return nil
	}
	w.v.sawAttr(w.at)
	dir, err := w.v.inode(w.at.Parent)
	if err != nil {
		return err
	}
	w.at, w.parent, w.name = dir, dir.Parent, ""
	return nil
}

// link puts the target of a symbolic link before what remains of the path. An
// absolute target starts at the root of the scope.
func (w *walker) link(child *record.Inode, name, rest string) (string, error) {
	if w.links++; w.links > maxSymlinks {
		return "", fail(moraine.InvalidArgument, "walk", name, "more than %d symbolic links", maxSymlinks)
	}
	if strings.HasPrefix(child.Target, "/") {
		root, err := w.v.inode(w.sc.root)
		if err != nil {
			return "", err
		}
		w.at, w.parent, w.name = root, root.Parent, ""
	}
	path := child.Target + "/" + rest
	if len(path) > maxPath {
		return "", fail(moraine.NameTooLong, "walk", name, "the path grows past %d bytes", maxPath)
	}
	return path, nil
}
