package observe

import (
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// Create implements gofuse.RawFileSystem.
func (w *observed) Create(cancel <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	c := call{op: opCreate, start: time.Now(), in: &in.InHeader, name: name}
	s := w.RawFileSystem.Create(cancel, in, name, out)
	w.o.end(c, s)
	return s
}

// Tmpfile implements gofuse.RawFileSystem.
func (w *observed) Tmpfile(cancel <-chan struct{}, in *gofuse.CreateIn, out *gofuse.CreateOut) gofuse.Status {
	c := call{op: opTmpfile, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Tmpfile(cancel, in, out)
	w.o.end(c, s)
	return s
}

// Open implements gofuse.RawFileSystem.
func (w *observed) Open(cancel <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	c := call{op: opOpen, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Open(cancel, in, out)
	w.o.end(c, s)
	return s
}

// Lseek implements gofuse.RawFileSystem.
func (w *observed) Lseek(cancel <-chan struct{}, in *gofuse.LseekIn, out *gofuse.LseekOut) gofuse.Status {
	c := call{op: opLseek, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Lseek(cancel, in, out)
	w.o.end(c, s)
	return s
}

// GetLk implements gofuse.RawFileSystem.
func (w *observed) GetLk(cancel <-chan struct{}, in *gofuse.LkIn, out *gofuse.LkOut) gofuse.Status {
	c := call{op: opGetLk, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.GetLk(cancel, in, out)
	w.o.end(c, s)
	return s
}

// SetLk implements gofuse.RawFileSystem.
func (w *observed) SetLk(cancel <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	c := call{op: opSetLk, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.SetLk(cancel, in)
	w.o.end(c, s)
	return s
}

// SetLkw implements gofuse.RawFileSystem.
func (w *observed) SetLkw(cancel <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	c := call{op: opSetLkw, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.SetLkw(cancel, in)
	w.o.end(c, s)
	return s
}

// Ioctl implements gofuse.RawFileSystem.
func (w *observed) Ioctl(cancel <-chan struct{}, in *gofuse.IoctlIn, inbuf []byte, out *gofuse.IoctlOut, outbuf []byte) gofuse.Status {
	c := call{op: opIoctl, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Ioctl(cancel, in, inbuf, out, outbuf)
	w.o.end(c, s)
	return s
}

// Flush implements gofuse.RawFileSystem.
func (w *observed) Flush(cancel <-chan struct{}, in *gofuse.FlushIn) gofuse.Status {
	c := call{op: opFlush, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Flush(cancel, in)
	w.o.end(c, s)
	return s
}

// Fsync implements gofuse.RawFileSystem.
func (w *observed) Fsync(cancel <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	c := call{op: opFsync, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Fsync(cancel, in)
	w.o.end(c, s)
	return s
}

// Fallocate implements gofuse.RawFileSystem.
func (w *observed) Fallocate(cancel <-chan struct{}, in *gofuse.FallocateIn) gofuse.Status {
	c := call{op: opFallocate, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.Fallocate(cancel, in)
	w.o.end(c, s)
	return s
}

// OpenDir implements gofuse.RawFileSystem.
func (w *observed) OpenDir(cancel <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	c := call{op: opOpenDir, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.OpenDir(cancel, in, out)
	w.o.end(c, s)
	return s
}

// ReadDir implements gofuse.RawFileSystem.
func (w *observed) ReadDir(cancel <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	c := call{op: opReadDir, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.ReadDir(cancel, in, out)
	w.o.end(c, s)
	return s
}

// ReadDirPlus implements gofuse.RawFileSystem.
func (w *observed) ReadDirPlus(cancel <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	c := call{op: opReadDirPlus, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.ReadDirPlus(cancel, in, out)
	w.o.end(c, s)
	return s
}

// FsyncDir implements gofuse.RawFileSystem.
func (w *observed) FsyncDir(cancel <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	c := call{op: opFsyncDir, start: time.Now(), in: &in.InHeader}
	s := w.RawFileSystem.FsyncDir(cancel, in)
	w.o.end(c, s)
	return s
}

// Read implements gofuse.RawFileSystem. The server sends the answer's bytes to the kernel after the
// time that is noted.
func (w *observed) Read(cancel <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	c := call{op: opRead, start: time.Now(), in: &in.InHeader}
	r, s := w.RawFileSystem.Read(cancel, in, buf)
	if r != nil {
		c.bytes = r.Size()
	}
	w.o.end(c, s)
	return r, s
}

// Write implements gofuse.RawFileSystem.
func (w *observed) Write(cancel <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	c := call{op: opWrite, start: time.Now(), in: &in.InHeader}
	n, s := w.RawFileSystem.Write(cancel, in, data)
	c.bytes = int(n)
	w.o.end(c, s)
	return n, s
}

// Writev implements gofuse.RawFileSystem.
func (w *observed) Writev(cancel <-chan struct{}, in *gofuse.WriteIn, data [][]byte) (uint32, gofuse.Status) {
	c := call{op: opWrite, start: time.Now(), in: &in.InHeader}
	n, s := w.RawFileSystem.Writev(cancel, in, data)
	c.bytes = int(n)
	w.o.end(c, s)
	return n, s
}

// CopyFileRange implements gofuse.RawFileSystem.
func (w *observed) CopyFileRange(cancel <-chan struct{}, in *gofuse.CopyFileRangeIn) (uint32, gofuse.Status) {
	c := call{op: opCopyRange, start: time.Now(), in: &in.InHeader}
	n, s := w.RawFileSystem.CopyFileRange(cancel, in)
	c.bytes = int(n)
	w.o.end(c, s)
	return n, s
}

// Release implements gofuse.RawFileSystem. It has no result.
func (w *observed) Release(cancel <-chan struct{}, in *gofuse.ReleaseIn) {
	c := call{op: opRelease, start: time.Now(), in: &in.InHeader}
	w.RawFileSystem.Release(cancel, in)
	w.o.end(c, gofuse.OK)
}

// ReleaseDir implements gofuse.RawFileSystem. It has no result.
func (w *observed) ReleaseDir(in *gofuse.ReleaseIn) {
	c := call{op: opReleaseDir, start: time.Now(), in: &in.InHeader}
	w.RawFileSystem.ReleaseDir(in)
	w.o.end(c, gofuse.OK)
}
