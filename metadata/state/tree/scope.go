package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Covers reports whether the path inner equals outer or is below it.
func Covers(outer, inner string) bool {
	for {
		var a, b string
		if a, outer = moraine.NextName(outer); a == "" {
			return true
		}
		if b, inner = moraine.NextName(inner); a != b {
			return false
		}
	}
}

// ResolveScope finds the directory of a scope; "" and "/" mean everything. It does not follow
// symbolic links: a scope is exactly its path.
func ResolveScope(v *kvtx.View, path string) (moraine.InodeID, error) {
	at := v.K.Top()
	for name, rest := moraine.NextName(path); name != ""; name, rest = moraine.NextName(rest) {
		if _, err := ReadInode(v, at); err != nil {
			return 0, err
		}
		e, ok, err := Lookup(v, at, name)
		if err != nil {
			return 0, err
		}
		if !ok || e.Typ != record.TypeDirectory {
			return 0, kvtx.Fail(moraine.NotFound, "resolve scope", path, "the directory of the certificate's scope does not exist")
		}
		at = e.Inode
	}
	return at, nil
}

// Within fails unless i is in the scope, or is a file without a name that the scope's session made.
// The error is the one for a missing inode, so that a session does not learn what is outside its
// directory. All other checks of an inode that a caller names come after this one.
func Within(v *kvtx.View, sc kvtx.Scope, i *record.Inode) error {
	ok, err := InScope(v, sc, i)
	if err == nil && !ok {
		err = kvtx.NoInode(i.Id)
	}
	return err
}

// InScope reports whether an inode is the scope's root or below it, or an unlinked file of the
// scope's session.
func InScope(v *kvtx.View, sc kvtx.Scope, i *record.Inode) (bool, error) {
	if i.Nlink == 0 && i.Owner == 0 && i.Typ == record.TypeFile && !i.Orphan() {
		return false, nil // a job is building it
	}
	if sc.Root == v.K.Top() || i.Id == sc.Root {
		return true, nil
	}
	if i.Parent == 0 && i.Owner != 0 && i.Owner == sc.Session {
		return true, nil
	}
	if i.Orphan() {
		return orphanInScope(v, sc, i)
	}
	ok, err := Below(v, sc.Root, i.Parent)
	if err == nil && !ok && i.ManyLinks && i.Nlink > 1 {
		_, _, ok, err = nameBelow(v, sc.Root, i)
	}
	return ok, err
}

// orphanInScope reports whether the scope's session keeps an orphan, or may keep it because its last
// name was in the scope.
func orphanInScope(v *kvtx.View, sc kvtx.Scope, i *record.Inode) (bool, error) {
	if keeps, err := Keeps(v, sc.Session, i.Id); keeps || err != nil || i.Linger == 0 {
		return keeps, err
	}
	in, err := Below(v, sc.Root, i.From)
	if kvtx.MoraineKind(err) == moraine.NotFound { // its directory is gone, too
		return false, nil
	}
	return in, err
}

// Keeps reports whether a session owns or keeps a file without a name.
func Keeps(v *kvtx.View, s moraine.SessionID, i moraine.InodeID) (bool, error) {
	_, ok, err := v.R.Get(v.K.SessionInode(s, i))
	return ok, err
}

// Named returns an inode that the caller names and that is in its scope, for changes.
func Named(t *kvtx.Tx, id moraine.InodeID) (*record.Inode, error) {
	i, err := Inode(t, id)
	if err != nil {
		return nil, err
	}
	return i, Within(&t.View, t.Scope, i)
}

// ReadNamed returns an inode that the caller of a read names and that is in its scope.
func ReadNamed(v *kvtx.View, sc kvtx.Scope, id moraine.InodeID) (*record.Inode, error) {
	i, err := ReadInode(v, id)
	if err != nil {
		return nil, err
	}
	return i, Within(v, sc, i)
}

// Below reports whether the directory at equals top or is below it.
func Below(v *kvtx.View, top, at moraine.InodeID) (bool, error) {
	for depth := 0; at != 0 && depth <= kvtx.MaxDepth; depth++ {
		if at == top {
			return true, nil
		}
		dir, err := Ancestor(v, at)
		if err != nil {
			return false, err
		}
		at = dir.Parent
	}
	return false, nil
}

// Tenants returns the tenants whose top-level directories are in the session's scope; a token of
// the session gives access to these. all is true if the scope is the root.
func Tenants(r *kvtx.View, root moraine.InodeID) (tenants []moraine.Tenant, all bool, err error) {
	if root == r.K.Top() {
		return nil, true, nil
	}
	i, err := ReadInode(r, root)
	if err != nil {
		return nil, false, err
	}
	return []moraine.Tenant{i.Tenant}, false, nil
}
