package fuse

import (
	"context"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

// Fallocate implements gofuse.RawFileSystem. Nothing is reserved: an allocation only
// makes the file longer, and never cuts what another mount appended meanwhile. A
// range of zeros is a hole.
func (o *openFiles) Fallocate(cancel <-chan struct{}, in *gofuse.FallocateIn) gofuse.Status {
	f := o.files.get(in.Fh)
	switch {
	case f == nil:
		return o.notOpenAs(in.Fh)
	case !f.writes:
		return gofuse.EBADF
	case in.Length == 0 || in.Offset > moraine.MaxFileSize:
		return gofuse.EINVAL
	case in.Length > moraine.MaxFileSize-in.Offset && in.Mode&unix.FALLOC_FL_PUNCH_HOLE == 0:
		return gofuse.Status(syscall.EFBIG)
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	if err := o.noPrivileges(ctx, f, in.Uid); err != nil {
		return nodeStatus(err)
	}
	off, n := int64(in.Offset), int64(min(in.Length, moraine.MaxFileSize-in.Offset))
	switch in.Mode {
	case 0:
		return status(f.handle.Grow(ctx, off+n))
	case unix.FALLOC_FL_KEEP_SIZE:
		return status(f.handle.Grow(ctx, 0)) // only the times change
	case unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE:
		return status(f.handle.PunchHole(ctx, off, n, 0))
	case unix.FALLOC_FL_ZERO_RANGE:
		return status(f.handle.PunchHole(ctx, off, n, off+n))
	}
	return gofuse.Status(syscall.EOPNOTSUPP)
}

// noPrivileges clears the setuid and setgid bits of a file that a user other than root
// changes. Of a write the kernel says so; of these calls it leaves it to the mount.
func (o *openFiles) noPrivileges(ctx context.Context, f *file, user uint32) error {
	if user == 0 || !f.state.privileged.Load() {
		return nil
	}
	return o.dropPrivileges(ctx, f.state)
}

// Lseek implements gofuse.RawFileSystem: the next data or the next hole, in what is
// committed and in what was written here.
func (o *openFiles) Lseek(cancel <-chan struct{}, in *gofuse.LseekIn, out *gofuse.LseekOut) gofuse.Status {
	f := o.files.get(in.Fh)
	if f == nil {
		return o.notOpenAs(in.Fh)
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	if in.Offset > moraine.MaxFileSize {
		return gofuse.Status(syscall.ENXIO)
	}
	if err := f.handle.Refresh(ctx); err != nil {
		return nodeStatus(err)
	}
	var seek func(context.Context, int64) (int64, bool, error)
	switch in.Whence {
	case unix.SEEK_DATA:
		seek = f.handle.SeekData
	case unix.SEEK_HOLE:
		seek = f.handle.SeekHole
	default:
		return gofuse.EINVAL
	}
	at, ok, err := seek(ctx, int64(in.Offset))
	switch {
	case err != nil:
		return nodeStatus(err)
	case !ok:
		return gofuse.Status(syscall.ENXIO)
	}
	out.Offset = uint64(at)
	return gofuse.OK
}

const (
	// leastClone is the size from which a copy of a range is a clone. A clone keeps
	// whole stripes of the source alive, and each one adds a table of extents.
	leastClone = 64 << 10
	mostClone  = 1 << 30 // of one request, whose answer has 32 bits
)

// CopyFileRange implements gofuse.RawFileSystem, by a clone. EOPNOTSUPP makes the
// kernel copy the bytes.
func (o *openFiles) CopyFileRange(cancel <-chan struct{}, in *gofuse.CopyFileRangeIn) (uint32, gofuse.Status) {
	src, dst := o.files.get(in.FhIn), o.files.get(in.FhOut)
	switch {
	case src == nil || dst == nil:
		return 0, o.notOpenAs(in.FhIn, in.FhOut)
	case !dst.writes:
		return 0, gofuse.EBADF
	case in.OffOut > moraine.MaxFileSize-mostClone:
		return 0, gofuse.Status(syscall.EOPNOTSUPP) // the write says what is wrong
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	if err := src.handle.Refresh(ctx); err != nil {
		return 0, nodeStatus(err)
	}
	size := uint64(src.handle.Size())
	if in.OffIn >= size {
		return 0, gofuse.OK
	}
	n := min(in.Len, size-in.OffIn, mostClone)
	if n < leastClone {
		return 0, gofuse.Status(syscall.EOPNOTSUPP)
	}
	if err := o.noPrivileges(ctx, dst, in.Uid); err != nil {
		return 0, nodeStatus(err)
	}
	err := dst.handle.CloneRange(ctx, src.handle, int64(in.OffIn), int64(in.OffOut), int64(n))
	switch moraine.KindOf(err) {
	case moraine.CrossTenant, moraine.TooLarge, moraine.Stale, moraine.InvalidArgument, moraine.Immutable:
		return 0, gofuse.Status(syscall.EOPNOTSUPP)
	}
	if err != nil {
		return 0, nodeStatus(err)
	}
	return uint32(n), gofuse.OK
}
