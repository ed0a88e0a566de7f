package observe

import (
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// Lookup implements gofuse.RawFileSystem.
func (w *observed) Lookup(cancel <-chan struct{}, in *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	c := call{op: opLookup, start: time.Now(), in: in, name: name}
	s := w.RawFileSystem.Lookup(cancel, in, name, out)
	w.o.end(c, s)
	return s
}

// GetAttr implements gofuse.RawFileSystem.
func (w *observed) GetAttr(cancel <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	c := call{op: opGetAttr, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.GetAttr(cancel, in, out)
	w.o.end(c, s)
	return s
}

// SetAttr implements gofuse.RawFileSystem.
func (w *observed) SetAttr(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	c := call{op: opSetAttr, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.SetAttr(cancel, in, out)
	w.o.end(c, s)
	return s
}

// Mknod implements gofuse.RawFileSystem.
func (w *observed) Mknod(cancel <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	c := call{op: opMknod, start: time.Now(), in: &in.InHeader, name: name}
	s := w.RawFileSystem.Mknod(cancel, in, name, out)
	w.o.end(c, s)
	return s
}

// Mkdir implements gofuse.RawFileSystem.
func (w *observed) Mkdir(cancel <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	c := call{op: opMkdir, start: time.Now(), in: &in.InHeader, name: name}
	s := w.RawFileSystem.Mkdir(cancel, in, name, out)
	w.o.end(c, s)
	return s
}

// Unlink implements gofuse.RawFileSystem.
func (w *observed) Unlink(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	c := call{op: opUnlink, start: time.Now(), in: in, name: name}
	s := w.RawFileSystem.Unlink(cancel, in, name)
	w.o.end(c, s)
	return s
}

// Rmdir implements gofuse.RawFileSystem.
func (w *observed) Rmdir(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	c := call{op: opRmdir, start: time.Now(), in: in, name: name}
	s := w.RawFileSystem.Rmdir(cancel, in, name)
	w.o.end(c, s)
	return s
}

// Rename implements gofuse.RawFileSystem.
func (w *observed) Rename(cancel <-chan struct{}, in *gofuse.RenameIn, name string, to string) gofuse.Status {
	c := call{op: opRename, start: time.Now(), in: &in.InHeader, name: name}
	s := w.RawFileSystem.Rename(cancel, in, name, to)
	w.o.end(c, s)
	return s
}

// Link implements gofuse.RawFileSystem.
func (w *observed) Link(cancel <-chan struct{}, in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	c := call{op: opLink, start: time.Now(), in: &in.InHeader, name: name}
	s := w.RawFileSystem.Link(cancel, in, name, out)
	w.o.end(c, s)
	return s
}

// Symlink implements gofuse.RawFileSystem.
func (w *observed) Symlink(cancel <-chan struct{}, in *gofuse.InHeader, to string, name string, out *gofuse.EntryOut) gofuse.Status {
	c := call{op: opSymlink, start: time.Now(), in: in, name: name}
	s := w.RawFileSystem.Symlink(cancel, in, to, name, out)
	w.o.end(c, s)
	return s
}

// Access implements gofuse.RawFileSystem.
func (w *observed) Access(cancel <-chan struct{}, in *gofuse.AccessIn) gofuse.Status {
	c := call{op: opAccess, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Access(cancel, in)
	w.o.end(c, s)
	return s
}

// SetXAttr implements gofuse.RawFileSystem.
func (w *observed) SetXAttr(cancel <-chan struct{}, in *gofuse.SetXAttrIn, attr string, data []byte) gofuse.Status {
	c := call{op: opSetXAttr, start: time.Now(), in: &in.InHeader, name: attr}
	s := w.RawFileSystem.SetXAttr(cancel, in, attr, data)
	w.o.end(c, s)
	return s
}

// RemoveXAttr implements gofuse.RawFileSystem.
func (w *observed) RemoveXAttr(cancel <-chan struct{}, in *gofuse.InHeader, attr string) gofuse.Status {
	c := call{op: opRemoveXAttr, start: time.Now(), in: in, name: attr}
	s := w.RawFileSystem.RemoveXAttr(cancel, in, attr)
	w.o.end(c, s)
	return s
}

// StatFs implements gofuse.RawFileSystem.
func (w *observed) StatFs(cancel <-chan struct{}, in *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	c := call{op: opStatFs, start: time.Now(), in: in}
	s := w.RawFileSystem.StatFs(cancel, in, out)
	w.o.end(c, s)
	return s
}

// Statx implements gofuse.RawFileSystem.
func (w *observed) Statx(cancel <-chan struct{}, in *gofuse.StatxIn, out *gofuse.StatxOut) gofuse.Status {
	c := call{op: opStatx, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Statx(cancel, in, out)
	w.o.end(c, s)
	return s
}

// Readlink implements gofuse.RawFileSystem.
func (w *observed) Readlink(cancel <-chan struct{}, in *gofuse.InHeader) ([]byte, gofuse.Status) {
	c := call{op: opReadlink, start: time.Now(), in: in}
	out, s := w.RawFileSystem.Readlink(cancel, in)
	w.o.end(c, s)
	return out, s
}

// GetXAttr implements gofuse.RawFileSystem.
func (w *observed) GetXAttr(cancel <-chan struct{}, in *gofuse.InHeader, attr string, dest []byte) (uint32, gofuse.Status) {
	c := call{op: opGetXAttr, start: time.Now(), in: in, name: attr}
	n, s := w.RawFileSystem.GetXAttr(cancel, in, attr, dest)
	w.o.end(c, s)
	return n, s
}

// ListXAttr implements gofuse.RawFileSystem.
func (w *observed) ListXAttr(cancel <-chan struct{}, in *gofuse.InHeader, dest []byte) (uint32, gofuse.Status) {
	c := call{op: opListXAttr, start: time.Now(), in: in}
	n, s := w.RawFileSystem.ListXAttr(cancel, in, dest)
	w.o.end(c, s)
	return n, s
}
