package fuse

import (
	"errors"
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"golang.org/x/sys/unix"
)

// refused reports whether an attribute has a meaning that this mount does not
// implement, such as capabilities of programs. It is better not to store what is not
// enforced.
func refused(name string) bool {
	return strings.HasPrefix(name, "system.") && !moraine.IsACL(name) || name == "security.capability"
}

// absent is the answer for an attribute that an inode does not have. Programs like ls read the label of
// SELinux of each file. After this error they stop, for all files of the mount. A host that uses such
// labels answers them in its kernel.
func absent(name string) gofuse.Status {
	if name == "security.selinux" {
		return gofuse.ENOTSUP
	}
	return gofuse.ENODATA
}

// GetXAttr implements gofuse.RawFileSystem. Programs read attributes of each file that they list, and
// most files have none. For these the answer waits for nothing, and needs no context.
func (fs *fileSystem) GetXAttr(cancel <-chan struct{}, in *gofuse.InHeader, name string, dest []byte) (uint32, gofuse.Status) {
	if s := checkXattrName(name); !s.Ok() {
		return 0, s
	}
	if refused(name) {
		return 0, gofuse.ENODATA
	}
	inode := fs.inode(in.NodeId)
	if fs.raw.HasNoXattrs(inode) {
		return 0, absent(name)
	}
	ctx, done := fs.request(cancel, in)
	defer done()
	value, err := fs.client.Xattrs().Get(ctx, inode, name)
	switch {
	case errors.Is(err, moraine.NoAttribute):
		return 0, absent(name)
	case err != nil:
		return 0, nodeStatus(err)
	}
	if moraine.IsACL(name) {
		value = fs.ids.LocalList(value)
	}
	return fit(value, dest)
}

// ListXAttr implements gofuse.RawFileSystem.
func (fs *fileSystem) ListXAttr(cancel <-chan struct{}, in *gofuse.InHeader, dest []byte) (uint32, gofuse.Status) {
	inode := fs.inode(in.NodeId)
	if fs.raw.HasNoXattrs(inode) {
		return 0, gofuse.OK
	}
	ctx, done := fs.request(cancel, in)
	defer done()
	names, err := fs.client.Xattrs().List(ctx, inode)
	if err != nil {
		return 0, nodeStatus(err)
	}
	var list []byte
	for _, n := range names {
		list = append(append(list, n...), 0)
	}
	return fit(list, dest)
}

// fit copies a value to a buffer that may be too small for it.
func fit(value, dest []byte) (uint32, gofuse.Status) {
	if len(value) > len(dest) {
		return uint32(len(value)), gofuse.ERANGE
	}
	return uint32(copy(dest, value)), gofuse.OK
}

// SetXAttr implements gofuse.RawFileSystem.
func (fs *fileSystem) SetXAttr(cancel <-chan struct{}, in *gofuse.SetXAttrIn, name string, value []byte) gofuse.Status {
	if s := checkXattrName(name); !s.Ok() {
		return s
	}
	if refused(name) {
		return gofuse.ENOTSUP
	}
	if moraine.IsACL(name) {
		return fs.setACL(cancel, in, name, value)
	}
	mode := client.XattrAny
	switch {
	case in.Flags&unix.XATTR_CREATE != 0:
		mode = client.XattrCreate
	case in.Flags&unix.XATTR_REPLACE != 0:
		mode = client.XattrReplace
	}
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	// The kernel reuses the value after the return, while a cancelled attempt may
	// still be sending it.
	err := fs.client.Xattrs().Set(ctx, fs.inode(in.NodeId), name, append([]byte(nil), value...), mode)
	if errors.Is(err, moraine.TooLarge) {
		return gofuse.Status(syscall.E2BIG)
	}
	return nodeStatus(err)
}

// RemoveXAttr implements gofuse.RawFileSystem.
func (fs *fileSystem) RemoveXAttr(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	if s := checkXattrName(name); !s.Ok() {
		return s
	}
	if refused(name) {
		return gofuse.ENODATA
	}
	ctx, done := fs.request(cancel, in)
	defer done()
	err := fs.client.Xattrs().Remove(ctx, fs.inode(in.NodeId), name)
	if moraine.IsACL(name) && errors.Is(err, moraine.NoAttribute) {
		return gofuse.OK // as on a local disk
	}
	return nodeStatus(err)
}
