package fuse

import (
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine/client"
)

// Mknod implements gofuse.RawFileSystem. The kernel opens fifos, sockets and device
// nodes by itself: the mount keeps only their attributes.
func (fs *fileSystem) Mknod(cancel <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	parent := fs.inode(in.NodeId)
	opts := client.NodeOptions{Mode: in.Mode & permBits, Umask: in.Umask, Exclusive: true}
	fs.made(in.Owner, &opts)
	switch typ, rdev := specialType(in); typ {
	case client.TypeUnknown:
		return gofuse.EINVAL
	case client.TypeRegular:
		attr, err := fs.client.Inodes().Create(ctx, parent, name, opts)
		return fs.entry(attr, err, out)
	default:
		attr, err := fs.client.Inodes().Mknod(ctx, parent, name, typ, rdev, opts)
		return fs.entry(attr, err, out)
	}
}

// specialType returns the type that a mknod requests, TypeUnknown for one that mknod
// does not make, and the device that it names.
func specialType(in *gofuse.MknodIn) (typ client.FileType, rdev uint32) {
	switch in.Mode & syscall.S_IFMT {
	case 0, syscall.S_IFREG:
		return client.TypeRegular, 0
	case syscall.S_IFIFO:
		return client.TypeFifo, 0
	case syscall.S_IFSOCK:
		return client.TypeSocket, 0
	case syscall.S_IFCHR:
		return client.TypeCharDevice, in.Rdev
	case syscall.S_IFBLK:
		return client.TypeBlockDevice, in.Rdev
	}
	return client.TypeUnknown, 0
}
