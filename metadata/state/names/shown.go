package names

import (
	"slices"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// Confine removes from an answer everything outside the scope of a confined caller.
func Confine(v *kvtx.View, sc kvtx.Scope, resp *wire.MetaResponse) error {
	if tree.All(v, sc) {
		return nil
	}
	switch r := resp.GetResult().(type) {
	case *wire.MetaResponse_Entry:
		return confineAttr(v, sc, r.Entry.GetAttr())
	case *wire.MetaResponse_Extents:
		return confineAttr(v, sc, r.Extents.GetAttr())
	case *wire.MetaResponse_Commit:
		return confineAttr(v, sc, r.Commit.GetAttr())
	case *wire.MetaResponse_Walk:
		return confineWalk(v, sc, r.Walk)
	case *wire.MetaResponse_ReadDir:
		return confinePages(v, sc, r.ReadDir)
	case *wire.MetaResponse_Jobs:
		for _, j := range r.Jobs.Jobs {
			if err := confineJob(v, sc, j); err != nil {
				return err
			}
		}
	case *wire.MetaResponse_Object:
		return confineObject(v, sc, r.Object.Object)
	case *wire.MetaResponse_BadObjects:
		for _, o := range r.BadObjects.Objects {
			if err := confineObject(v, sc, o.Object); err != nil {
				return err
			}
			if o.Object.GetKey() == "" {
				o.Error = "" // the store's error may name the key
			}
		}
	}
	return nil
}

// confinePages removes from a listing what lies outside the scope.
func confinePages(v *kvtx.View, sc kvtx.Scope, r *wire.ReadDirReply) error {
	pages := [][]*wire.DirEntry{r.Entries}
	for _, p := range r.Also {
		pages = append(pages, p.Entries)
	}
	for _, e := range slices.Concat(pages...) {
		if err := confineAttr(v, sc, e.Attr); err != nil {
			return err
		}
	}
	return nil
}

// confineAttr removes from attributes what lies outside the scope.
func confineAttr(v *kvtx.View, sc kvtx.Scope, a *wire.Attr) error {
	switch {
	case a.GetInode() == uint64(sc.Root):
		a.Parent = 0
	case a.GetNlink() > 1 && a.Type != wire.FileType_FILE_TYPE_DIRECTORY:
		i, err := tree.ReadInode(v, moraine.InodeID(a.Inode))
		if err != nil {
			return err
		}
		parent, err := tree.ParentIn(v, sc, i)
		a.Parent = uint64(parent)
		return err
	}
	return nil
}

// confineWalk removes from a walk's answer what lies outside the scope.
func confineWalk(v *kvtx.View, sc kvtx.Scope, w *wire.WalkReply) error {
	for _, s := range w.Steps {
		if err := confineAttr(v, sc, s.Attr); err != nil {
			return err
		}
	}
	if err := confineAttr(v, sc, w.Attr); err != nil {
		return err
	}
	if w.Found && (w.Name == "" || w.Attr.GetInode() == uint64(sc.Root)) {
		w.Parent, w.Name = w.Attr.GetParent(), ""
	}
	return nil
}

// confineJob replaces the subject of a job of one file by the file's present path in the scope,
// because the job keeps an earlier path. It also hides the key of an object to delete, which is an
// earlier path.
func confineJob(v *kvtx.View, sc kvtx.Scope, j *wire.Job) error {
	j.Cursor = nil
	if j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT {
		j.Subject, j.Error = "", ""
	}
	if j.Inode == 0 || j.Subject == "" {
		return nil
	}
	i, err := tree.ReadInode(v, moraine.InodeID(j.Inode))
	if kvtx.MoraineKind(err) == moraine.NotFound {
		j.Subject = ""
		return nil
	}
	if err != nil {
		return err
	}
	path, err := tree.PathShown(v, sc, i)
	if record.OfFile(j.Kind) {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	if path = record.Clip(path, moraine.MaxNameLen); j.Subject != path {
		j.Subject, j.Error = path, "" // it may have the file's earlier path
	}
	return err
}

// confineObject hides the key of an object unless it matches its file's present path in the scope.
// A different key is a path that the file, or its source, had elsewhere.
func confineObject(v *kvtx.View, sc kvtx.Scope, o *wire.Object) error {
	i, err := tree.ReadInode(v, moraine.InodeID(o.GetInode()))
	if err != nil {
		return err
	}
	path, err := tree.PathShown(v, sc, i)
	if err == nil && (path == "" || !strings.HasSuffix("/"+o.Key, "/"+path)) {
		o.Key = ""
	}
	return err
}
