package fuse

import (
	"context"
	"errors"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"golang.org/x/sys/unix"
)

// Lookup implements gofuse.RawFileSystem.
func (fs *fileSystem) Lookup(cancel <-chan struct{}, in *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	if len(name) > moraine.MaxNameLen {
		return gofuse.Status(syscall.ENAMETOOLONG) // every other call looks its names up first
	}
	ctx, done := fs.request(cancel, in)
	defer done()
	dir := fs.inode(in.NodeId)
	attr, err := fs.client.Inodes().Lookup(ctx, dir, name)
	if moraine.KindOf(err) == moraine.NotFound {
		return fs.missing(dir, name, out)
	}
	if err == nil {
		attr, err = fs.present(ctx, attr)
	}
	s := fs.entry(attr, err, out)
	if s.Ok() {
		fs.lendEntry(dir, name, attr, out)
	}
	return s
}

// Forget implements gofuse.RawFileSystem. Nodes are numbers: the mount keeps only
// the open ones.
func (fs *fileSystem) Forget(_, _ uint64) {}

// entry answers a request for a name.
func (fs *fileSystem) entry(attr client.Attr, err error, out *gofuse.EntryOut) gofuse.Status {
	if err != nil {
		return status(err)
	}
	fs.fillEntry(attr, out)
	return gofuse.OK
}

// Mkdir implements gofuse.RawFileSystem.
func (fs *fileSystem) Mkdir(cancel <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	opts := client.NodeOptions{Mode: in.Mode & permBits, Umask: in.Umask, Exclusive: true}
	fs.made(in.Owner, &opts)
	attr, err := fs.client.Inodes().Mkdir(ctx, fs.inode(in.NodeId), name, opts)
	return fs.entry(attr, err, out)
}

// Symlink implements gofuse.RawFileSystem.
func (fs *fileSystem) Symlink(cancel <-chan struct{}, in *gofuse.InHeader, target, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := fs.request(cancel, in)
	defer done()
	var opts client.NodeOptions
	fs.made(in.Owner, &opts)
	attr, err := fs.client.Inodes().Symlink(ctx, fs.inode(in.NodeId), name, target, opts)
	return fs.entry(attr, err, out)
}

// Readlink implements gofuse.RawFileSystem.
func (fs *fileSystem) Readlink(cancel <-chan struct{}, in *gofuse.InHeader) ([]byte, gofuse.Status) {
	ctx, done := fs.request(cancel, in)
	defer done()
	attr, err := fs.client.Inodes().Stat(ctx, fs.inode(in.NodeId))
	if err != nil {
		return nil, nodeStatus(err)
	}
	if !attr.IsSymlink() {
		return nil, gofuse.EINVAL
	}
	return []byte(attr.Target()), gofuse.OK
}

// Link implements gofuse.RawFileSystem.
func (fs *fileSystem) Link(cancel <-chan struct{}, in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	attr, err := fs.client.Inodes().Link(ctx, fs.inode(in.Oldnodeid), fs.inode(in.NodeId), name)
	if err == nil {
		if now, err := fs.present(ctx, attr); err == nil { // otherwise the name is there all the same
			attr = now
		}
	}
	if errors.Is(err, moraine.TooLarge) {
		return gofuse.Status(syscall.EMLINK)
	}
	return fs.entry(attr, err, out)
}

// Rmdir implements gofuse.RawFileSystem.
func (fs *fileSystem) Rmdir(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	ctx, done := fs.request(cancel, in)
	defer done()
	_, err := fs.client.Inodes().Remove(ctx, fs.inode(in.NodeId), name, client.RemoveOptions{Directory: true})
	return status(err)
}

// Unlink implements gofuse.RawFileSystem. A file that is open here exists until it
// is closed, as long as the mount's session does.
func (fs *fileSystem) Unlink(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	ctx, done := fs.request(cancel, in)
	defer done()
	parent := fs.inode(in.NodeId)
	return status(fs.losing(ctx, parent, name, func(keep bool) error {
		_, err := fs.client.Inodes().Remove(ctx, parent, name, client.RemoveOptions{Keep: keep})
		return err
	}))
}

// Rename implements gofuse.RawFileSystem.
func (fs *fileSystem) Rename(cancel <-chan struct{}, in *gofuse.RenameIn, name, newName string) gofuse.Status {
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE|unix.RENAME_WHITEOUT) != 0 {
		return gofuse.EINVAL
	}
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	from := client.Entry{Parent: fs.inode(in.NodeId), Name: name}
	to := client.Entry{Parent: fs.inode(in.Newdir), Name: newName}
	opts := client.RenameOptions{NoReplace: in.Flags&unix.RENAME_NOREPLACE != 0, Exchange: in.Flags&unix.RENAME_EXCHANGE != 0}
	if in.Flags&unix.RENAME_WHITEOUT != 0 {
		opts.Whiteout = &client.NodeOptions{}
		fs.made(in.Owner, opts.Whiteout)
	}
	if opts.NoReplace || opts.Exchange {
		return status(fs.client.Inodes().Rename(ctx, from, to, opts))
	}
	return status(fs.losing(ctx, to.Parent, to.Name, func(keep bool) error {
		opts.Keep = keep
		return fs.client.Inodes().Rename(ctx, from, to, opts)
	}))
}

// losing calls do, which takes a name from the inode of an entry, if there is one.
// An inode that is open here is kept. Another client may replace the entry between
// the check and do: the new inode is not open here.
func (fs *fileSystem) losing(ctx context.Context, parent moraine.InodeID, name string, do func(keep bool) error) error {
	attr, err := fs.client.Inodes().Lookup(ctx, parent, name)
	if err != nil || !attr.IsRegular() {
		return do(false) // there is nothing to lose, or do gets the same error
	}
	s, open, err := fs.files.beginLoss(ctx, attr.Inode())
	if err != nil {
		return err
	}
	// do may have taken effect although its answer is lost. A release of an inode
	// that still has a name does nothing.
	defer func() { fs.release(s, fs.files.endLoss(s, open)) }()
	if open {
		fs.files.mayKeep(s)
	}
	return do(open)
}
