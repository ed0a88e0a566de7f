package fuse

import (
	"context"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
)

// undisturbed is how long a call continues after a signal reaches its caller. POSIX
// programs do not expect calls on files to be interrupted, and some (the Go
// runtime, programs with SIGCHLD or a timer) get signals constantly. But a call
// that waits for servers that are down must end on Ctrl-C.
const undisturbed = time.Second

// request returns the context of one call of an application, and its cancel
// function. The context ends when the caller was interrupted, but not before the
// call has taken the time undisturbed.
func (m *Mount) request(cancel <-chan struct{}, in *gofuse.InHeader) (context.Context, func()) {
	ctx, stop := context.WithCancelCause(m.life)
	thread := in.Pid // in belongs to the server once the call has returned
	t := time.AfterFunc(time.Duration(m.undisturbed.Load()), func() {
		if interrupted(ctx, cancel, thread) {
			stop(&moraine.Error{Op: "fuse", Kind: moraine.Canceled})
		}
	})
	return ctx, func() {
		t.Stop()
		stop(nil)
	}
}

// interrupted waits until a call's caller was interrupted, or until ctx ends.
func interrupted(ctx context.Context, cancel <-chan struct{}, thread uint32) bool {
	look := time.NewTicker(signalInterval)
	defer look.Stop()
	for !gaveUp(thread) {
		select {
		case <-cancel:
			return true
		case <-ctx.Done():
			return false
		case <-look.C:
		}
	}
	return true
}

// inode is the inode of a FUSE node.
func (m *Mount) inode(node uint64) moraine.InodeID {
	if node == rootNode {
		return m.root
	}
	return moraine.InodeID(node)
}

// node is the FUSE node of an inode. The metadata service never issues the number
// 1.
func (m *Mount) node(inode uint64) uint64 {
	if moraine.InodeID(inode) == m.root {
		return rootNode
	}
	return inode
}

// rootNode is the kernel's number of the mounted directory.
const rootNode = 1
