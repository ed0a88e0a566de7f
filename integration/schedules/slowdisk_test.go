package schedules_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// slowDisk is a directory whose files lie in another one, through a mount of this
// process: so that every read, write and sync can be made to wait.
type slowDisk struct {
	server *fuse.Server
	delay  atomic.Int64 // of each call, in nanoseconds
	waited atomic.Int64 // calls
}

// mountSlow mounts at dir what is in backing; both are made.
func mountSlow(dir, backing string) (*slowDisk, error) {
	for _, d := range []string{dir, backing} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(backing, &st); err != nil {
		return nil, err
	}
	d := &slowDisk{}
	root := &fs.LoopbackRoot{Path: backing, Dev: uint64(st.Dev)}
	root.NewNode = func(data *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &slowNode{LoopbackNode: fs.LoopbackNode{RootData: data}, disk: d}
	}
	node := &slowNode{LoopbackNode: fs.LoopbackNode{RootData: root}, disk: d}
	root.RootNode = node
	options := &fs.Options{MountOptions: fuse.MountOptions{FsName: filepath.Base(dir), MaxWrite: 512 << 10}}
	server, err := fs.Mount(dir, node, options)
	if err != nil {
		return nil, err
	}
	d.server = server
	return d, nil
}

// wait is what every call does first.
func (d *slowDisk) wait() {
	if delay := d.delay.Load(); delay > 0 {
		d.waited.Add(1)
		time.Sleep(time.Duration(delay))
	}
}

// slowNode is a file or directory of it.
type slowNode struct {
	fs.LoopbackNode
	disk *slowDisk
}

// Open implements fs.NodeOpener. The backing file is opened without O_DIRECT, for
// which the buffers of a mount are not aligned.
func (n *slowNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, f, errno := n.LoopbackNode.Open(ctx, flags&^syscall.O_DIRECT)
	return n.slow(h), f, errno
}

// Create implements fs.NodeCreater.
func (n *slowNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, h, f, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_DIRECT, mode, out)
	return inode, n.slow(h), f, errno
}

func (n *slowNode) slow(h fs.FileHandle) fs.FileHandle {
	if f, ok := h.(*fs.LoopbackFile); ok {
		return &slowFile{f, n.disk}
	}
	return h
}

// slowFile is an open file of it. It has just the methods of a LoopbackFile that are
// named here: by some others the kernel would go past this process.
type slowFile struct {
	f    *fs.LoopbackFile
	disk *slowDisk
}

func (s *slowFile) Read(ctx context.Context, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	s.disk.wait()
	return s.f.Read(ctx, p, off)
}

func (s *slowFile) Write(ctx context.Context, p []byte, off int64) (uint32, syscall.Errno) {
	s.disk.wait()
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
