package fuse

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse/idmap"
	"github.com/morainefs/moraine/internal/rawclient"
)

// undisturbed is how long a call continues after a signal reaches its caller. POSIX
// programs do not expect calls on files to be interrupted, and some (the Go
// runtime, programs with SIGCHLD or a timer) get signals constantly. But a call
// that waits for servers that are down must end on Ctrl-C.
const undisturbed = time.Second

// calls is what every call of an application needs: the client, and a context for the call.
type calls struct {
	client *client.Client
	raw    rawclient.Client // of client
	log    *slog.Logger
	root   moraine.InodeID
	ids    idmap.Map // Config.IDs
	// undisturbed is the constant of that name, in nanoseconds; tests shorten it.
	undisturbed atomic.Int64
	// life is the context of everything that must outlive a call, and calling that of
	// the calls themselves.
	life, calling context.Context
	// patience is Config.CallPatience: no call takes longer.
	patience time.Duration
	// loans are the loans to the kernel that server serves.
	loans  client.Loans
	gate   gate
	atimes *atimes // nil: reads are not recorded
	server atomic.Pointer[gofuse.Server]
}

// request returns the context of one call of an application, and its cancel
// function. The context ends when the call has taken Config.CallPatience, or when the
// caller was interrupted, but not before the call has taken the time undisturbed.
func (c *calls) request(cancel <-chan struct{}, in *gofuse.InHeader) (context.Context, func()) {
	// A call has parts that each wait for servers: the client's patience bounds each of
	// them, and this their sum.
	bounded, end := context.WithTimeout(c.calling, c.patience)
	ctx, done := c.interruptible(bounded, cancel, in)
	return ctx, func() {
		done()
		end()
	}
}

// unbounded is request for a call that waits for another program. Only an interrupt of the caller ends
// it early.
func (c *calls) unbounded(cancel <-chan struct{}, in *gofuse.InHeader) (context.Context, func()) {
	return c.interruptible(c.calling, cancel, in)
}

// interruptible returns a context that ends with another one, or when the caller was interrupted.
func (c *calls) interruptible(within context.Context, cancel <-chan struct{}, in *gofuse.InHeader) (context.Context, func()) {
	c.gate.enter()
	ctx, stop := context.WithCancelCause(within)
	thread := in.Pid // in belongs to the server once the call has returned
	t := time.AfterFunc(time.Duration(c.undisturbed.Load()), func() {
		if interrupted(ctx, cancel, thread) {
			stop(&moraine.Error{Op: "fuse", Kind: moraine.Canceled})
		}
	})
	return ctx, func() {
		t.Stop()
		stop(nil)
		c.gate.leave()
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
func (c *calls) inode(node uint64) moraine.InodeID {
	if node == rootNode {
		return c.root
	}
	return moraine.InodeID(node)
}

// node is the FUSE node of an inode. The metadata service never issues the number
// 1.
func (c *calls) node(inode uint64) uint64 {
	if moraine.InodeID(inode) == c.root {
		return rootNode
	}
	return inode
}

// rootNode is the kernel's number of the mounted directory.
const rootNode = 1
