package fuse

import (
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// resent answers the requests that the kernel sends once more, since a daemon took them and died. The
// service may have carried them out. Most change nothing the second time. Of the others, resent
// returns ETIMEDOUT, which means on a mount: it may have taken effect.
type resent struct{ *fileSystem }

// resentBit marks such a request (FUSE_UNIQUE_RESEND).
const resentBit = 1 << 63

func isResent(in *gofuse.InHeader) bool { return in.Unique&resentBit != 0 }

const unknown = gofuse.Status(syscall.ETIMEDOUT)

// doubt replaces the answers that the request itself may have caused.
func doubt(in *gofuse.InHeader, s gofuse.Status, caused ...gofuse.Status) gofuse.Status {
	for _, c := range caused {
		if s == c && isResent(in) {
			return unknown
		}
	}
	return s
}

const exists = gofuse.Status(syscall.EEXIST)

// Mkdir implements gofuse.RawFileSystem.
func (r resent) Mkdir(cancel <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return doubt(&in.InHeader, r.fileSystem.Mkdir(cancel, in, name, out), exists)
}

// Mknod implements gofuse.RawFileSystem.
func (r resent) Mknod(cancel <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return doubt(&in.InHeader, r.fileSystem.Mknod(cancel, in, name, out), exists)
}

// Symlink implements gofuse.RawFileSystem.
func (r resent) Symlink(cancel <-chan struct{}, in *gofuse.InHeader, target, name string, out *gofuse.EntryOut) gofuse.Status {
	return doubt(in, r.fileSystem.Symlink(cancel, in, target, name, out), exists)
}

// Link implements gofuse.RawFileSystem.
func (r resent) Link(cancel <-chan struct{}, in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return doubt(&in.InHeader, r.fileSystem.Link(cancel, in, name, out), exists)
}

// Create implements gofuse.RawFileSystem.
func (r resent) Create(cancel <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	r.closeUnanswered(&in.InHeader)
	return doubt(&in.InHeader, r.fileSystem.Create(cancel, in, name, out), exists)
}

// Open implements gofuse.RawFileSystem.
func (r resent) Open(cancel <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	r.closeUnanswered(&in.InHeader)
	return r.fileSystem.Open(cancel, in, out)
}

// Tmpfile implements gofuse.RawFileSystem.
func (r resent) Tmpfile(cancel <-chan struct{}, in *gofuse.CreateIn, out *gofuse.CreateOut) gofuse.Status {
	r.closeUnanswered(&in.InHeader)
	return r.fileSystem.Tmpfile(cancel, in, out)
}

// Unlink implements gofuse.RawFileSystem.
func (r resent) Unlink(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	return doubt(in, r.fileSystem.Unlink(cancel, in, name), gofuse.ENOENT)
}

// Rmdir implements gofuse.RawFileSystem.
func (r resent) Rmdir(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	return doubt(in, r.fileSystem.Rmdir(cancel, in, name), gofuse.ENOENT)
}

// Rename implements gofuse.RawFileSystem. A second exchange would undo the first.
func (r resent) Rename(cancel <-chan struct{}, in *gofuse.RenameIn, name, newName string) gofuse.Status {
	if isResent(&in.InHeader) && in.Flags&(unix.RENAME_EXCHANGE|unix.RENAME_WHITEOUT) != 0 {
		return unknown
	}
	return doubt(&in.InHeader, r.fileSystem.Rename(cancel, in, name, newName), gofuse.ENOENT, exists)
}

// SetXAttr implements gofuse.RawFileSystem.
func (r resent) SetXAttr(cancel <-chan struct{}, in *gofuse.SetXAttrIn, attr string, data []byte) gofuse.Status {
	return doubt(&in.InHeader, r.fileSystem.SetXAttr(cancel, in, attr, data), exists)
}

// RemoveXAttr implements gofuse.RawFileSystem.
func (r resent) RemoveXAttr(cancel <-chan struct{}, in *gofuse.InHeader, attr string) gofuse.Status {
	return doubt(in, r.fileSystem.RemoveXAttr(cancel, in, attr), gofuse.ENODATA)
}

// Write implements gofuse.RawFileSystem. A second append would write the bytes twice.
func (r resent) Write(cancel <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	if isResent(&in.InHeader) && in.Flags&syscall.O_APPEND != 0 && in.WriteFlags&gofuse.WRITE_CACHE == 0 {
		return 0, unknown
	}
	return r.fileSystem.Write(cancel, in, data)
}

// closeUnanswered closes the file that a daemon before opened for this request. The kernel does not
// know its handle.
func (r resent) closeUnanswered(in *gofuse.InHeader) {
	if !isResent(in) {
		return
	}
	if fh, ok := r.restored.LoadAndDelete(in.Unique &^ resentBit); ok {
		r.Release(nil, &gofuse.ReleaseIn{Fh: fh.(uint64)})
	}
}
