package fuse

import (
	"context"
	"errors"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sys/unix"
)

// Lookup implements gofuse.RawFileSystem.
func (m *Mount) Lookup(cancel <-chan struct{}, in *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := m.request(cancel, in)
	defer done()
	attr, err := m.client.Inodes().Lookup(ctx, m.inode(in.NodeId), name)
	if err == nil {
		attr, err = m.present(ctx, attr)
	}
	return m.entry(attr, err, out)
}

// Forget implements gofuse.RawFileSystem. Nodes are numbers: the mount keeps only
// the open ones.
func (m *Mount) Forget(_, _ uint64) {}

// entry answers a request for a name.
func (m *Mount) entry(attr *wire.Attr, err error, out *gofuse.EntryOut) gofuse.Status {
	if err != nil {
		return status(err)
	}
	m.fillEntry(attr, out)
	return gofuse.OK
}

// Mknod implements gofuse.RawFileSystem, for regular files only.
func (m *Mount) Mknod(cancel <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	if t := in.Mode & syscall.S_IFMT; t != 0 && t != syscall.S_IFREG {
		return gofuse.EPERM // as POSIX requires of a file system without such nodes
	}
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	attr, err := m.client.Inodes().Create(ctx, m.inode(in.NodeId), name, client.NodeOptions{
		Mode: in.Mode & permBits, UID: in.Uid, GID: in.Gid, Exclusive: true})
	return m.entry(attr, err, out)
}

// Mkdir implements gofuse.RawFileSystem.
func (m *Mount) Mkdir(cancel <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	attr, err := m.client.Inodes().Mkdir(ctx, m.inode(in.NodeId), name, client.NodeOptions{
		Mode: in.Mode & permBits, UID: in.Uid, GID: in.Gid, Exclusive: true})
	return m.entry(attr, err, out)
}

// Symlink implements gofuse.RawFileSystem.
func (m *Mount) Symlink(cancel <-chan struct{}, in *gofuse.InHeader, target, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := m.request(cancel, in)
	defer done()
	attr, err := m.client.Inodes().Symlink(ctx, m.inode(in.NodeId), name, target, client.NodeOptions{UID: in.Uid, GID: in.Gid})
	return m.entry(attr, err, out)
}

// Readlink implements gofuse.RawFileSystem.
func (m *Mount) Readlink(cancel <-chan struct{}, in *gofuse.InHeader) ([]byte, gofuse.Status) {
	ctx, done := m.request(cancel, in)
	defer done()
	attr, err := m.client.Inodes().Stat(ctx, m.inode(in.NodeId))
	if err != nil {
		return nil, nodeStatus(err)
	}
	if attr.Type != wire.FileType_FILE_TYPE_SYMLINK {
		return nil, gofuse.EINVAL
	}
	return []byte(attr.Target), gofuse.OK
}

// Link implements gofuse.RawFileSystem.
func (m *Mount) Link(cancel <-chan struct{}, in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	attr, err := m.client.Inodes().Link(ctx, m.inode(in.Oldnodeid), m.inode(in.NodeId), name)
	if err == nil {
		attr, err = m.present(ctx, attr)
	}
	if errors.Is(err, moraine.TooLarge) {
		return gofuse.Status(syscall.EMLINK)
	}
	return m.entry(attr, err, out)
}

// Rmdir implements gofuse.RawFileSystem.
func (m *Mount) Rmdir(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	ctx, done := m.request(cancel, in)
	defer done()
	_, err := m.client.Inodes().Remove(ctx, m.inode(in.NodeId), name, client.RemoveOptions{Directory: true})
	return status(err)
}

// Unlink implements gofuse.RawFileSystem. A file that is open here exists until it
// is closed, as long as the mount's session does.
func (m *Mount) Unlink(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	ctx, done := m.request(cancel, in)
	defer done()
	parent := m.inode(in.NodeId)
	return status(m.losing(ctx, parent, name, func(keep bool) error {
		_, err := m.client.Inodes().Remove(ctx, parent, name, client.RemoveOptions{Keep: keep})
		return err
	}))
}

// Rename implements gofuse.RawFileSystem.
func (m *Mount) Rename(cancel <-chan struct{}, in *gofuse.RenameIn, name, newName string) gofuse.Status {
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return gofuse.EINVAL
	}
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	from := client.Entry{Parent: m.inode(in.NodeId), Name: name}
	to := client.Entry{Parent: m.inode(in.Newdir), Name: newName}
	opts := client.RenameOptions{NoReplace: in.Flags&unix.RENAME_NOREPLACE != 0, Exchange: in.Flags&unix.RENAME_EXCHANGE != 0}
	if opts.NoReplace || opts.Exchange {
		return status(m.client.Inodes().Rename(ctx, from, to, opts))
	}
	return status(m.losing(ctx, to.Parent, to.Name, func(keep bool) error {
		opts.Keep = keep
		return m.client.Inodes().Rename(ctx, from, to, opts)
	}))
}

// losing calls do, which takes a name from the inode of an entry, if there is one.
// An inode that is open here is kept. Another client may replace the entry between
// the check and do: the new inode is not open here.
func (m *Mount) losing(ctx context.Context, parent moraine.InodeID, name string, do func(keep bool) error) error {
	attr, err := m.client.Inodes().Lookup(ctx, parent, name)
	if err != nil || attr.Type != wire.FileType_FILE_TYPE_REGULAR {
		return do(false) // there is nothing to lose, or do gets the same error
	}
	s, open, err := m.files.beginLoss(ctx, moraine.InodeID(attr.Inode))
	if err != nil {
		return err
	}
	// do may have taken effect although its answer is lost. A release of an inode
	// that still has a name does nothing.
	defer func() { m.release(s, m.files.endLoss(s, open)) }()
	return do(open)
}
