package fuse

import (
	"context"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// blockSize is the I/O size that the mount recommends to programs. Each of their
// calls is a request, so the usual 4 KiB would be slow.
const blockSize = 128 << 10

// fileType are the type bits of the mode.
func fileType(t client.FileType) uint32 {
	if bits, ok := typeBits[t]; ok {
		return bits
	}
	return syscall.S_IFREG
}

var typeBits = map[client.FileType]uint32{
	client.TypeRegular: syscall.S_IFREG, client.TypeDirectory: syscall.S_IFDIR, client.TypeSymlink: syscall.S_IFLNK,
	client.TypeFifo: syscall.S_IFIFO, client.TypeSocket: syscall.S_IFSOCK,
	client.TypeCharDevice: syscall.S_IFCHR, client.TypeBlockDevice: syscall.S_IFBLK,
}

// fillAttr fills in an inode's attributes for the kernel.
func (c *calls) fillAttr(a client.Attr, out *gofuse.Attr) {
	*out = gofuse.Attr{Ino: uint64(a.Inode()), Size: uint64(a.Size()), Blocks: blocks(a), Mode: fileType(a.Type()) | a.Mode()&permBits,
		Nlink: a.Nlink(), Owner: c.shownOwner(a), Blksize: blockSize, Rdev: a.Rdev()}
	out.Atime, out.Atimensec = splitTime(c.atimes.shown(a))
	out.Mtime, out.Mtimensec = splitTime(a.ModTime().UnixNano())
	out.Ctime, out.Ctimensec = splitTime(a.ChangeTime().UnixNano())
	if a.IsSymlink() {
		out.Size = uint64(len(a.Target()))
	}
}

// blocks is how many units of 512 bytes hold the content. Programs take a file with
// 0 blocks for one hole, so it is 0 only for such a file.
func blocks(a client.Attr) uint64 {
	held := a.Stored()
	if a.Evicted() {
		held = a.Size()
	}
	return (uint64(held) + 511) / 512
}

// splitTime splits nanoseconds since the epoch. Earlier times have a negative
// number of seconds, in two's complement.
func splitTime(ns int64) (sec uint64, nsec uint32) {
	s, n := ns/1e9, ns%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	return uint64(s), uint32(n)
}

// fillEntry fills in the inode of a name for the kernel, without a validity time.
func (c *calls) fillEntry(a client.Attr, out *gofuse.EntryOut) {
	*out = gofuse.EntryOut{NodeId: c.node(uint64(a.Inode())), Generation: 1}
	c.fillAttr(a, &out.Attr)
}

// attr returns the current attributes of an inode for users of this mount,
// including writes here that are not committed yet. From then on an open file also
// shows what others have committed.
func (o *openFiles) attr(ctx context.Context, inode moraine.InodeID) (client.Attr, error) {
	f := o.files.of(inode)
	if f == nil {
		return o.client.Inodes().Stat(ctx, inode)
	}
	if err := f.handle.Refresh(ctx); err != nil {
		return client.Attr{}, err
	}
	a := f.handle.Attr()
	f.state.notePrivileges(a.Mode())
	return a, nil
}

// present is attr for an inode whose attributes were just read.
func (o *openFiles) present(ctx context.Context, a client.Attr) (client.Attr, error) {
	if f := o.files.of(a.Inode()); f == nil || !f.writes {
		return a, nil
	}
	return o.attr(ctx, a.Inode())
}

// GetAttr implements gofuse.RawFileSystem.
func (fs *fileSystem) GetAttr(cancel <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	attr, err := fs.attr(ctx, fs.inode(in.NodeId))
	if err != nil {
		return nodeStatus(err)
	}
	fs.fillAttr(attr, &out.Attr)
	fs.lendAttr(attr, out)
	return gofuse.OK
}

// SetAttr implements gofuse.RawFileSystem: truncate, chmod, chown and utimens. The
// client handles earlier writes to the file that are not committed.
func (fs *fileSystem) SetAttr(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	change, s := fs.chown(in)
	if !s.Ok() {
		return s
	}
	attr, err := fs.setAttr(ctx, fs.inode(in.NodeId), &change)
	if err != nil {
		return nodeStatus(err)
	}
	fs.fillAttr(attr, &out.Attr)
	return gofuse.OK
}

func (fs *fileSystem) setAttr(ctx context.Context, inode moraine.InodeID, in *gofuse.SetAttrIn) (client.Attr, error) {
	set, err := fs.wanted(ctx, inode, in)
	if err != nil {
		return client.Attr{}, err
	}
	if set == (client.SetAttr{}) {
		return fs.attr(ctx, inode)
	}
	if set.AccessTime != nil {
		fs.atimes.set(ctx, inode)
	}
	if set.Size != nil {
		fs.prefetches.stop(ctx, inode)
	}
	attr, err := fs.client.Inodes().SetAttr(ctx, inode, set)
	if err != nil {
		return client.Attr{}, err
	}
	f := fs.files.of(inode)
	if f == nil {
		return attr, nil
	}
	f.state.notePrivileges(attr.Mode())
	return f.handle.Attr(), nil
}

// wanted is the change that the metadata service must make.
func (fs *fileSystem) wanted(ctx context.Context, inode moraine.InodeID, in *gofuse.SetAttrIn) (client.SetAttr, error) {
	set := changeOf(in)
	newOwner := in.Valid&(gofuse.FATTR_UID|gofuse.FATTR_GID) != 0
	if in.Valid&gofuse.FATTR_MODE == 0 && (newOwner || in.Valid&gofuse.FATTR_KILL_SUIDGID != 0) {
		attr, err := fs.client.Inodes().Stat(ctx, inode)
		if err != nil {
			return client.SetAttr{}, err
		}
		if mode := withoutPrivileges(attr.Mode()); mode != attr.Mode() && !attr.IsDir() {
			set.Mode = &mode
		}
	}
	return set, nil
}

// changeOf is the change that the kernel names.
func changeOf(in *gofuse.SetAttrIn) (set client.SetAttr) {
	if in.Valid&gofuse.FATTR_SIZE != 0 {
		set.Size = new(int64(in.Size))
	}
	if in.Valid&gofuse.FATTR_MODE != 0 {
		set.Mode = new(in.Mode & permBits)
	}
	if in.Valid&gofuse.FATTR_UID != 0 {
		set.UID = new(in.Uid)
	}
	if in.Valid&gofuse.FATTR_GID != 0 {
		set.GID = new(in.Gid)
	}
	if t, ok := in.GetATime(); ok {
		set.AccessTime = &t
	}
	if t, ok := in.GetMTime(); ok {
		set.ModTime = &t
	}
	return set
}

// StatFs implements gofuse.RawFileSystem. It counts space in bytes of files, by the
// cluster's default scheme, and within the quotas of the directories above.
func (fs *fileSystem) StatFs(cancel <-chan struct{}, in *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	ctx, done := fs.request(cancel, in)
	defer done()
	resp, err := fs.raw.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return status(err)
	}
	c := resp.GetCluster()
	total, free := space(c)
	*out = gofuse.StatfsOut{Bsize: blockSize, Frsize: moraine.BlockSize, NameLen: moraine.MaxNameLen,
		Blocks: total / moraine.BlockSize, Bfree: free / moraine.BlockSize, Bavail: free / moraine.BlockSize,
		Files: c.GetInodes() + maxFreeInodes, Ffree: maxFreeInodes}
	if u, err := fs.client.Quotas().Usage(ctx, fs.inode(in.NodeId)); err == nil && u.Limited {
		boundSpace(out, u)
	}
	return gofuse.OK
}

// boundSpace makes what is below a quota look like a disk of the quota's size.
func boundSpace(out *gofuse.StatfsOut, u client.Space) {
	below := u.Usage
	if u.Quota != nil {
		below = *u.Quota
	}
	if room := u.RoomBytes / moraine.BlockSize; room < out.Bavail {
		out.Bavail = room
	}
	used := (below.Bytes + moraine.BlockSize - 1) / moraine.BlockSize
	out.Blocks, out.Bfree = used+out.Bavail, out.Bavail
	out.Ffree = min(out.Ffree, u.RoomInodes)
	out.Files = below.Inodes + out.Ffree
}

// maxFreeInodes is the reported number of free inodes: practically unlimited.
const maxFreeInodes = 1 << 40

// space is the capacity of all devices in service. Nothing is free while no host is
// up, since the fill of the devices is then unknown.
func space(c *wire.ClusterReply) (total, free uint64) {
	up := false
	for _, h := range c.GetTopology().GetHosts() {
		up = up || h.Alive
		for _, d := range h.Devices {
			if d.State != wire.DeviceState_DEVICE_STATE_IN {
				continue
			}
			total += d.Capacity
			free += d.Capacity - min(d.Capacity, d.Used)
		}
	}
	if s := c.GetDefaultScheme(); s.GetK() > 0 {
		k, n := uint64(s.K), uint64(s.K+s.M)
		total, free = total/n*k, free/n*k
	}
	if !up {
		free = 0
	}
	return total, free
}
