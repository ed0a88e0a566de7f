package state

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A file with several names may have some inside the directory of a session and some outside,
// and its record has one of them: the newest. Jobs and objects have names that a file had when
// they were made, perhaps in another directory. A confined session is shown names and numbers
// of its own directory only, and that directory has no parent, as the root has none.

// all reports whether the scope is the whole namespace. A command of the leader has none.
func (v *view) all(sc scope) bool { return sc.root == 0 || sc.root == v.k.top() }

// parentIn returns the directory that an inode in the scope has as parent there. 0: it is the
// root of the scope, or has no name.
func (v *view) parentIn(sc scope, i *record.Inode) (moraine.InodeID, error) {
	switch {
	case v.all(sc):
		return i.Parent, nil
	case i.Id == sc.root:
		return 0, nil
	case !i.ManyLinks || i.Nlink < 2:
		return i.Parent, nil // its only name
	}
	if ok, err := v.below(sc.root, i.Parent); ok || err != nil {
		return i.Parent, err
	}
	parent, _, _, err := v.nameBelow(sc.root, i)
	return parent, err
}

// pathShown returns the path of an inode in the scope, from the root of the namespace on, by a
// name that it has there; "" where it has none.
func (v *view) pathShown(sc scope, i *record.Inode) (string, error) {
	if v.all(sc) {
		path, _, err := v.pathOf(i)
		return path, err
	}
	below, ok, err := v.pathBelow(sc.root, i.Id)
	if err != nil || !ok {
		return "", err
	}
	root, err := v.inode(sc.root)
	if err != nil {
		return "", err
	}
	above, ok, err := v.pathOf(root)
	if err != nil || !ok {
		return "", err
	}
	return strings.TrimSuffix(above+"/"+below, "/"), nil
}

// confine takes out of an answer what a caller that is confined to a directory may not see.
func (v *view) confine(sc scope, resp *wire.MetaResponse) error {
	if v.all(sc) {
		return nil
	}
	switch r := resp.GetResult().(type) {
	case *wire.MetaResponse_Entry:
		return v.confineAttr(sc, r.Entry.GetAttr())
	case *wire.MetaResponse_Extents:
		return v.confineAttr(sc, r.Extents.GetAttr())
	case *wire.MetaResponse_Commit:
		return v.confineAttr(sc, r.Commit.GetAttr())
	case *wire.MetaResponse_Hold:
		return v.confineAttr(sc, r.Hold.GetDirectory())
	case *wire.MetaResponse_Walk:
		return v.confineWalk(sc, r.Walk)
	case *wire.MetaResponse_ReadDir:
		for _, e := range r.ReadDir.Entries {
			if err := v.confineAttr(sc, e.Attr); err != nil {
				return err
			}
		}
	case *wire.MetaResponse_Jobs:
		for _, j := range r.Jobs.Jobs {
			if err := v.confineJob(sc, j); err != nil {
				return err
			}
		}
	case *wire.MetaResponse_Object:
		return v.confineObject(sc, r.Object.Object)
	case *wire.MetaResponse_BadObjects:
		for _, o := range r.BadObjects.Objects {
			if err := v.confineObject(sc, o.Object); err != nil {
				return err
			}
			if o.Object.GetKey() == "" {
				o.Error = "" // of the store, which may name the key
			}
		}
	}
	return nil
}

func (v *view) confineAttr(sc scope, a *wire.Attr) error {
	switch {
	case a.GetInode() == uint64(sc.root):
		a.Parent = 0
	case a.GetNlink() > 1 && a.Type != wire.FileType_FILE_TYPE_DIRECTORY:
		i, err := v.inode(moraine.InodeID(a.Inode))
		if err != nil {
			return err
		}
		parent, err := v.parentIn(sc, i)
		a.Parent = uint64(parent)
		return err
	}
	return nil
}

func (v *view) confineWalk(sc scope, w *wire.WalkReply) error {
	for _, s := range w.Steps {
		if err := v.confineAttr(sc, s.Attr); err != nil {
			return err
		}
	}
	if err := v.confineAttr(sc, w.Attr); err != nil {
		return err
	}
	if w.Found && (w.Name == "" || w.Attr.GetInode() == uint64(sc.root)) {
		w.Parent, w.Name = w.Attr.GetParent(), ""
	}
	return nil
}

// confineJob gives a job of one file the name that the file has now, in the scope: the job has
// that of another time. The key of an object that is deleted is a path of an earlier time.
func (v *view) confineJob(sc scope, j *wire.Job) error {
	j.Cursor = nil
	if j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT {
		j.Subject, j.Error = "", ""
	}
	if j.Inode == 0 || j.Subject == "" {
		return nil
	}
	i, err := v.inode(moraine.InodeID(j.Inode))
	if moraineKind(err) == moraine.NotFound {
		j.Subject = ""
		return nil
	}
	if err != nil {
		return err
	}
	path, err := v.pathShown(sc, i)
	if record.OfFile(j.Kind) {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	if path = record.Clip(path, moraine.MaxNameLen); j.Subject != path {
		j.Subject, j.Error = path, "" // it may name the file as it was called
	}
	return err
}

// confineObject leaves out the key of an object that is not that of the path which its file
// has now, in the scope: it is one that the file, or its source, had elsewhere.
func (v *view) confineObject(sc scope, o *wire.Object) error {
	i, err := v.inode(moraine.InodeID(o.GetInode()))
	if err != nil {
		return err
	}
	path, err := v.pathShown(sc, i)
	if err == nil && (path == "" || !strings.HasSuffix("/"+o.Key, "/"+path)) {
		o.Key = ""
	}
	return err
}
