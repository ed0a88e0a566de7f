// Package slowdisk is a directory whose files are in another one, through a FUSE
// mount of this process. It can delay every read, write and sync of processes that
// keep their data there, like a disk that is slow or hangs. It needs /dev/fuse, and
// fusermount3 where the user is not root. One path through it: Mount mounts the directory, a process uses it,
// Delay or Hang delays its calls, Answer ends that, and Unmount removes it.
package slowdisk

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Disk is such a directory. Its methods may be called concurrently.
type Disk struct {
	server *fuse.Server
	delay  atomic.Int64 // of each call, in nanoseconds
	waited atomic.Int64 // calls

	mu   sync.Mutex
	hung chan struct{} // closed when it answers again; nil: it does not hang

	hold hold
}

// Mount mounts at dir the contents of backing; it makes both.
func Mount(dir, backing string) (*Disk, error) {
	for _, d := range []string{dir, backing} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(backing, &st); err != nil {
		return nil, err
	}
	d := &Disk{}
	root := &fs.LoopbackRoot{Path: backing, Dev: uint64(st.Dev)}
	node := &slowNode{LoopbackNode: &fs.LoopbackNode{RootData: root}, disk: d}
	root.RootNode = node
	options := &fs.Options{MountOptions: fuse.MountOptions{FsName: filepath.Base(dir), MaxWrite: 512 << 10}}
	server, err := fs.Mount(dir, node, options)
	if err != nil {
		return nil, err
	}
	d.server = server
	return d, nil
}

// Delay makes every call wait for that long from now on.
func (d *Disk) Delay(each time.Duration) { d.delay.Store(int64(each)) }

// Waited is how many calls have waited, including those that wait now.
func (d *Disk) Waited() int64 { return d.waited.Load() }

// Hang makes every call wait until Answer. A process that is killed meanwhile ends
// no sooner, as with a real disk.
func (d *Disk) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung = make(chan struct{})
	}
}

// Answer ends a Hang.
func (d *Disk) Answer() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

// unmountWithin is how long Unmount waits for remaining users. The open files
// of a killed process, or a mount namespace that is being made or removed, keep
// it for a moment.
const unmountWithin = 10 * time.Second

// Unmount ends it. The contents of the other directory stay.
func (d *Disk) Unmount() error {
	d.Answer()
	d.Release()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		err := d.server.Unmount()
		if err == nil || time.Since(began) > unmountWithin {
			return err
		}
	}
}

// wait is the first step of every call.
func (d *Disk) wait() {
	d.mu.Lock()
	hung := d.hung
	d.mu.Unlock()
	if hung != nil {
		d.waited.Add(1)
		<-hung
	}
	if delay := d.delay.Load(); delay > 0 {
		d.waited.Add(1)
		time.Sleep(time.Duration(delay))
	}
}

// slowNode is a file or directory of it.
type slowNode struct {
	*fs.LoopbackNode
	disk *Disk
}

// WrapChild implements fs.NodeWrapChilder.
func (n *slowNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &slowNode{LoopbackNode: ops.(*fs.LoopbackNode), disk: n.disk}
}

// Open implements fs.NodeOpener. It opens the backing file without O_DIRECT, for
// which the buffers of a mount are not aligned.
func (n *slowNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, f, errno := n.LoopbackNode.Open(ctx, flags&^syscall.O_DIRECT)
	return n.slow(h, n.Path(nil)), f, errno
}

// Create implements fs.NodeCreater.
func (n *slowNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, h, f, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_DIRECT, mode, out)
	return inode, n.slow(h, filepath.Join(n.Path(nil), name)), f, errno
}

func (n *slowNode) slow(h fs.FileHandle, path string) fs.FileHandle {
	if f, ok := h.(*fs.LoopbackFile); ok {
		return &slowFile{f, n.disk, path}
	}
	return h
}

// slowFile is an open file of it. It has only the methods of a LoopbackFile that
// are named here: with some others the kernel would bypass this process.
type slowFile struct {
	f    *fs.LoopbackFile
	disk *Disk
	path string // at the time of opening
}

func (s *slowFile) Read(ctx context.Context, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	s.disk.wait()
	return s.f.Read(ctx, p, off)
}

func (s *slowFile) Write(ctx context.Context, p []byte, off int64) (uint32, syscall.Errno) {
	s.disk.wait()
	if !s.disk.hold.pass(s.path) {
		return 0, syscall.EIO
	}
	return s.f.Write(ctx, p, off)
}

func (s *slowFile) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	s.disk.wait()
	return s.f.Fsync(ctx, flags)
}

func (s *slowFile) Allocate(ctx context.Context, off, n uint64, mode uint32) syscall.Errno {
	return s.f.Allocate(ctx, off, n, mode)
}

func (s *slowFile) Flush(ctx context.Context) syscall.Errno   { return s.f.Flush(ctx) }
func (s *slowFile) Release(ctx context.Context) syscall.Errno { return s.f.Release(ctx) }

func (s *slowFile) Getattr(ctx context.Context, out *fuse.AttrOut) syscall.Errno {
	return s.f.Getattr(ctx, out)
}

func (s *slowFile) Setattr(ctx context.Context, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return s.f.Setattr(ctx, in, out)
}
