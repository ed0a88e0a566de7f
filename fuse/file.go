package fuse

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/limit"
)

// openFiles answers the requests about open files.
type openFiles struct {
	*calls
	files      table
	pages      *pages
	prefetches *prefetches
	level      moraine.Level // Config.Level
	// reads limits the bytes of reads being answered.
	reads *limit.Semaphore
	// background are the running releases.
	background sync.WaitGroup
	closings   closings
	unlocking  context.Context // of the commits before an unlock that nobody waits for
	// restored are the handles that daemons before opened, by the number of the request, and gone
	// those of files that no longer exist, with their places in the state.
	restored, gone sync.Map
	ended          atomic.Bool // the mount is detached
}

// Open implements gofuse.RawFileSystem.
func (o *openFiles) Open(cancel <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	err := o.open(ctx, o.inode(in.NodeId), in.Flags, in.Unique, out)
	if err != nil {
		return nodeStatus(err)
	}
	return gofuse.OK
}

// open opens a file and adds it to the table.
func (o *openFiles) open(ctx context.Context, inode moraine.InodeID, flags uint32, unique uint64, out *gofuse.OpenOut) error {
	// Pin it first, so that a removal of its name from now on knows that it must be
	// kept.
	s, err := o.files.pin(ctx, inode)
	if err != nil {
		return err
	}
	return o.openPinned(ctx, s, flags, unique, out)
}

// openPinned opens a pinned file for the request of that number and adds it to the table, or unpins it.
func (o *openFiles) openPinned(ctx context.Context, s *openInode, flags uint32, unique uint64, out *gofuse.OpenOut) error {
	inode, synced := s.inode, flags&syscall.O_DSYNC != 0 // O_SYNC includes its bit
	h, err := o.client.Inodes().OpenHandle(ctx, inode, handleOptions(o.level, synced))
	if err != nil {
		o.release(s, o.files.unpin(s))
		return err
	}
	writes := flags&syscall.O_ACCMODE != syscall.O_RDONLY
	if h.Attr().Sealed() && (writes || flags&syscall.O_TRUNC != 0) {
		_ = h.Close(ctx) // nothing was written
		o.release(s, o.files.unpin(s))
		return &moraine.Error{Op: "open", Ref: inode.String(), Kind: moraine.Immutable}
	}
	s.notePrivileges(h.Attr().Mode())
	f := &file{state: s, handle: h, writes: writes}
	out.OpenFlags = o.pagesFor(f, flags)
	out.Fh = o.add(f)
	f.record(o.files.state, unique, synced)
	o.prefetches.opened(f, flags)
	if o.atimes.noteOpen(f, flags, out.OpenFlags) {
		o.forget(inode)
	}
	return nil
}

// handleOptions are those of a file that is opened, with O_DSYNC or without.
func handleOptions(level moraine.Level, synced bool) client.HandleOptions {
	if synced {
		return client.HandleOptions{Level: moraine.NVMe}
	}
	return client.HandleOptions{Level: level}
}

// release releases the content of an inode without a name, if the table says so.
func (o *openFiles) release(s *openInode, release bool) {
	if !release {
		return
	}
	o.background.Go(func() {
		_ = o.client.Inodes().Release(o.life, s.inode) // the client repeats it
		o.files.forgetKept(s)
		o.files.endLoss(s, false)
	})
}

// Create implements gofuse.RawFileSystem. The kernel calls it after it found no
// such name. Another client may have made one since, whose permissions the kernel
// has not checked. ESTALE makes the kernel look it up again and open it.
func (o *openFiles) Create(cancel <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	opts := client.NodeOptions{Mode: in.Mode & permBits, Umask: in.Umask, Exclusive: true}
	o.made(in.Owner, &opts)
	attr, err := o.client.Inodes().Create(ctx, o.inode(in.NodeId), name, opts)
	if errors.Is(err, moraine.Exists) && in.Flags&syscall.O_EXCL == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	if err != nil {
		return status(err)
	}
	if err := o.open(ctx, attr.Inode(), in.Flags, in.Unique, &out.OpenOut); err != nil {
		o.loans.AwaitEnd() // of the missing name
		return nodeStatus(err)
	}
	o.fillEntry(attr, &out.EntryOut)
	return gofuse.OK
}

// Release implements gofuse.RawFileSystem: the last user of an open file has closed
// it. Each close was a Flush before, which reported errors; an error here reaches
// no program.
func (o *openFiles) Release(_ <-chan struct{}, in *gofuse.ReleaseIn) {
	o.gate.enter()
	defer o.gate.leave()
	o.beforeRelease(o.files.get(in.Fh))
	f := o.files.take(in.Fh)
	if f == nil {
		releaseGone(o, in.Fh)
		return
	}
	if err := f.close(o.life); err != nil {
		o.log.Error("file commit failed after close", "inode", f.state.inode, "err", err)
	}
	o.files.endWriting(f)
	if f.paged != nil {
		o.prefetches.closed(f)
		o.pages.leave(f.paged)
	}
	o.unlockHandle(f)
	o.files.clean(f.state)
	o.files.state.Drop(f.place)
	o.release(f.state, o.files.unpin(f.state))
}

// Flush implements gofuse.RawFileSystem: a close. It returns when the written bytes
// are committed, at the mount's level, so that the next open of the file, on any
// mount, reads them. Then the locks end that the closing process has by fcntl.
func (o *openFiles) Flush(cancel <-chan struct{}, in *gofuse.FlushIn) gofuse.Status {
	f := o.files.get(in.Fh)
	if f == nil {
		return o.notOpenAs(in.Fh)
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	var err error
	if f.writes {
		err = f.handle.Flush(ctx)
	}
	o.closedBy(ctx, f, in.LockOwner, err != nil)
	if !f.writes {
		return status(err)
	}
	return o.committed(f, err, false)
}

// Fsync implements gofuse.RawFileSystem. It returns when the whole file is on its
// devices, synced (level nvme), at any level of close. It also commits what other
// programs wrote to the file through this mount, whatever the file was opened for.
func (o *openFiles) Fsync(cancel <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	f := o.files.get(in.Fh)
	if f == nil {
		return o.notOpenAs(in.Fh)
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	return o.committed(f, f.handle.Sync(ctx), true)
}

// Read implements gofuse.RawFileSystem. Fewer bytes than requested mean the end of
// the file.
func (o *openFiles) Read(cancel <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	f := o.files.get(in.Fh)
	if f == nil {
		return nil, o.notOpenAs(in.Fh)
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	// buf is not touched, and so takes no memory, before its bytes are granted.
	granted := int64(len(buf))
	acquired := int64(0)
	memory := func() error {
		err := o.reads.Acquire(ctx, granted)
		if err == nil {
			acquired = granted
		}
		return err
	}
	// Only a reply with bytes keeps them: for one without, the server does not call
	// Done. A panic ends only this request.
	defer func() { o.reads.Release(acquired) }()
	o.pages.reads.Inc()
	got, err := o.read(ctx, f, in, buf, memory)
	if err != nil {
		return nil, status(err)
	}
	o.atimes.noteRead(f, in.Flags)
	if got.n == 0 {
		return gofuse.ReadResultData(nil), gofuse.OK
	}
	r := newReadReply(got, buf, o.reads, acquired)
	acquired = 0
	return r, gofuse.OK
}

// Write implements gofuse.RawFileSystem. It copies data before it returns. A write
// with O_SYNC or O_DSYNC returns when it is on its devices.
func (o *openFiles) Write(cancel <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	f := o.files.get(in.Fh)
	if f == nil {
		return 0, o.notOpenAs(in.Fh)
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	o.files.beginWrite(f.state)
	defer o.files.endWrite(f.state)
	if in.WriteFlags&gofuse.WRITE_KILL_SUIDGID != 0 && f.state.privileged.Load() {
		if err := o.dropPrivileges(ctx, f.state); err != nil {
			return 0, status(err)
		}
	}
	// Only the metadata service knows where the end is. When the kernel writes
	// pages of a mapped file, they have an offset, whatever the file was opened
	// with.
	var n int
	var err error
	own := in.WriteFlags&gofuse.WRITE_CACHE == 0
	appends := in.Flags&syscall.O_APPEND != 0 && own
	if appends {
		_, n, err = f.handle.Append(ctx, data)
		o.settle(ctx) // the kernel has dropped pages where it takes the end to be
	} else {
		n, err = f.handle.WriteAt(ctx, data, int64(in.Offset))
	}
	if n > 0 && own && in.Flags&syscall.O_DSYNC != 0 { // O_SYNC includes its bit
		err := f.handle.Sync(ctx)
		if appends && errors.Is(err, moraine.Canceled) {
			return 0, gofuse.Status(syscall.ETIMEDOUT) // after EINTR the program would append it again
		}
		if err != nil {
			return 0, status(err)
		}
	}
	if n > 0 { // a short write; the next one returns the error, if it persists
		return uint32(n), gofuse.OK
	}
	return 0, status(err)
}

// notOpen is the answer for a file handle that is not in the table: after the
// mount's end all of them are closed.
func (o *openFiles) notOpen() gofuse.Status {
	if o.ended.Load() {
		return gofuse.Status(syscall.ENOTCONN)
	}
	return gofuse.EBADF
}

const (
	permBits = 0o7777
	setBits  = syscall.S_ISUID | syscall.S_ISGID
)
