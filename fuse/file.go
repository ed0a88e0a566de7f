package fuse

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// openFlags make reads and writes go past the kernel's pages (see the package's
// comment). Writes to one file that do not extend it may run at once: the handle
// orders them.
const openFlags = gofuse.FOPEN_DIRECT_IO | gofuse.FOPEN_PARALLEL_DIRECT_WRITES

// Open implements gofuse.RawFileSystem.
func (m *Mount) Open(cancel <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	fh, err := m.open(ctx, m.inode(in.NodeId), in.Flags, client.HandleOptions{})
	if err != nil {
		return nodeStatus(err)
	}
	out.Fh, out.OpenFlags = fh, openFlags
	return gofuse.OK
}

// open opens a file and enters it in the table.
func (m *Mount) open(ctx context.Context, inode moraine.InodeID, flags uint32, opts client.HandleOptions) (fh uint64, err error) {
	// It is pinned first, so that whoever removes its name from now on knows
	// that it must be kept.
	s, err := m.files.pin(ctx, inode)
	if err != nil {
		return 0, err
	}
	opts.Level = m.cfg.Level
	if flags&syscall.O_DSYNC != 0 { // O_SYNC has its bit
		opts.Level = moraine.NVMe
	}
	h, err := m.client.Inodes().OpenHandle(ctx, inode, opts)
	if err != nil {
		m.release(s, m.files.unpin(s))
		return 0, err
	}
	writes := flags&syscall.O_ACCMODE != syscall.O_RDONLY
	if h.Attr().GetSealed() && (writes || flags&syscall.O_TRUNC != 0) {
		_ = h.Close(ctx) // nothing was written
		m.release(s, m.files.unpin(s))
		return 0, &moraine.Error{Op: "open", Ref: inode.String(), Kind: moraine.Immutable}
	}
	s.notePrivileges(h.Attr().GetMode())
	return m.files.add(&file{state: s, handle: h, writes: writes}), nil
}

// release gives back the content of an inode that has no name, where the table
// says so.
func (m *Mount) release(s *openInode, release bool) {
	if !release {
		return
	}
	m.background.Go(func() {
		if err := m.client.Inodes().Release(m.life, s.inode); err != nil {
			m.log.Warn("a file without a name was not given back; it goes with the session", "inode", s.inode, "err", err)
		}
		m.files.endLoss(s, false)
	})
}

// Create implements gofuse.RawFileSystem. The kernel asks for it where it found
// no such name. Somebody else may have made one since, which it holds no
// permissions of: ESTALE makes it look again and open that.
func (m *Mount) Create(cancel <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	var later *client.Later
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		later = &client.Later{} // whoever may write to it has it flushed when he closes it
	}
	attr, err := m.client.Inodes().Create(ctx, m.inode(in.NodeId), name, client.NodeOptions{
		Mode: in.Mode & permBits, UID: in.Uid, GID: in.Gid, Exclusive: true, Later: later})
	if errors.Is(err, moraine.Exists) && in.Flags&syscall.O_EXCL == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	if err != nil {
		return status(err)
	}
	fh, err := m.open(ctx, moraine.InodeID(attr.Inode), in.Flags, client.HandleOptions{Later: later})
	if err != nil {
		return nodeStatus(err)
	}
	m.fillEntry(attr, &out.EntryOut)
	out.Fh, out.OpenFlags = fh, openFlags
	return gofuse.OK
}

// Release implements gofuse.RawFileSystem: the last user of an open file has
// closed it. Each close was a Flush before, which reported errors; nobody hears
// of this one.
func (m *Mount) Release(_ <-chan struct{}, in *gofuse.ReleaseIn) {
	f := m.files.take(in.Fh)
	if f == nil {
		return
	}
	if err := f.close(m.life); err != nil {
		m.log.Error("what was written to a file is not all there, and its writer may not know", "inode", f.state.inode, "err", err)
	}
	m.release(f.state, m.files.unpin(f.state))
}

// Flush implements gofuse.RawFileSystem: a close. It returns when what was
// written is committed, at the mount's level, so that whoever opens the file next,
// anywhere, reads it.
func (m *Mount) Flush(cancel <-chan struct{}, in *gofuse.FlushIn) gofuse.Status {
	f := m.files.get(in.Fh)
	if f == nil {
		return m.notOpen()
	}
	if !f.writes {
		return gofuse.OK
	}
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	return status(f.handle.Flush(ctx))
}

// Fsync implements gofuse.RawFileSystem. It returns when the whole file is on its
// devices, synced (level nvme), whatever level close has. What others wrote to the file
// through this mount is committed too, whatever the file was opened for.
func (m *Mount) Fsync(cancel <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	f := m.files.get(in.Fh)
	if f == nil {
		return m.notOpen()
	}
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	return status(f.handle.Sync(ctx))
}

// Read implements gofuse.RawFileSystem. Fewer bytes than asked for mean the end
// of the file.
func (m *Mount) Read(cancel <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	f := m.files.get(in.Fh)
	if f == nil {
		return nil, m.notOpen()
	}
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	// buf is not touched, and so takes no memory, before its bytes are granted.
	granted := int64(len(buf))
	if err := m.reads.Acquire(ctx, granted); err != nil {
		return nil, status(err)
	}
	// Only a reply with bytes keeps them: for one without, the server does not call Done.
	// A panic ends the request alone.
	defer func() { m.reads.Release(granted) }()
	n, err := f.handle.ReadAt(ctx, buf, int64(in.Offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, status(err)
	}
	if n == 0 {
		return gofuse.ReadResultData(nil), gofuse.OK
	}
	r := &readReply{m: m, vector: [1][]byte{buf[:n]}}
	r.granted.Store(granted)
	granted = 0
	return r, gofuse.OK
}

// readReply is a read's answer of at least one byte. It is written to the kernel from
// where it is.
type readReply struct {
	m       *Mount
	granted atomic.Int64 // bytes of Mount.reads; 0 after Done
	vector  [1][]byte
}

func (r *readReply) Size() int                            { return len(r.vector[0]) }
func (r *readReply) Bytes([]byte) ([]byte, gofuse.Status) { return r.vector[0], gofuse.OK }
func (r *readReply) Slices() ([][]byte, gofuse.Status)    { return r.vector[:], gofuse.OK }

// Done gives the memory back. The server calls it for each reply with bytes, also where
// the kernel did not take them.
func (r *readReply) Done() {
	if n := r.granted.Swap(0); n > 0 {
		r.m.reads.Release(n)
	}
}

// Write implements gofuse.RawFileSystem. data is copied before it returns; a write with
// O_SYNC or O_DSYNC returns when it is on its devices.
func (m *Mount) Write(cancel <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	f := m.files.get(in.Fh)
	if f == nil {
		return 0, m.notOpen()
	}
	ctx, done := m.request(cancel, &in.InHeader)
	defer done()
	if in.WriteFlags&gofuse.WRITE_KILL_SUIDGID != 0 && f.state.privileged.Load() {
		if err := m.dropPrivileges(ctx, f.state); err != nil {
			return 0, status(err)
		}
	}
	// Where the end is only the service knows. The kernel's own writing of the
	// pages of a mapped file has its place, whatever the file was opened with.
	var n int
	var err error
	own := in.WriteFlags&gofuse.WRITE_CACHE == 0
	appends := in.Flags&syscall.O_APPEND != 0 && own
	if appends {
		_, n, err = f.handle.Append(ctx, data)
	} else {
		n, err = f.handle.WriteAt(ctx, data, int64(in.Offset))
	}
	if n > 0 && own && in.Flags&syscall.O_DSYNC != 0 { // O_SYNC has its bit
		err := f.handle.Sync(ctx)
		if appends && errors.Is(err, moraine.Canceled) {
			return 0, gofuse.Status(syscall.ETIMEDOUT) // upon EINTR it would be appended again
		}
		if err != nil {
			return 0, status(err)
		}
	}
	if n > 0 { // a short write; the error, if it stays, comes with the next
		return uint32(n), gofuse.OK
	}
	return 0, status(err)
}

// notOpen is the answer for a file handle that is not in the table: after the
// mount's end they were all cut off.
func (m *Mount) notOpen() gofuse.Status {
	if m.ended.Load() {
		return gofuse.Status(syscall.ENOTCONN)
	}
	return gofuse.EBADF
}

const (
	permBits = 0o7777
	setBits  = syscall.S_ISUID | syscall.S_ISGID
)

func (s *openInode) notePrivileges(mode uint32) {
	if mode&setBits != 0 {
		s.privileged.Store(true)
	}
}

// dropPrivileges takes the setuid and setgid bits from a file that is written to
// by somebody who may not keep them.
func (m *Mount) dropPrivileges(ctx context.Context, s *openInode) error {
	attr, err := m.client.Inodes().Stat(ctx, s.inode)
	if err != nil {
		return err
	}
	if mode := withoutPrivileges(attr.Mode); mode != attr.Mode {
		_, err = m.client.Inodes().SetAttr(ctx, s.inode, &wire.SetAttr{Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: mode})
		if err != nil {
			return err
		}
	}
	s.privileged.Store(false)
	return nil
}

// withoutPrivileges is the mode after a write or a change of owner. A setgid bit
// without the right to execute once meant mandatory locking; it stays.
func withoutPrivileges(mode uint32) uint32 {
	mode &^= syscall.S_ISUID
	if mode&0o010 != 0 {
		mode &^= syscall.S_ISGID
	}
	return mode
}
