package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/filelocks"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/transport/wire"
)

// FileLock is an advisory lock on a range of a file, as flock and fcntl make them. End is after the
// last byte. An owner is a number of the caller's choice: its own locks never exclude each other.
// Locks with Flock and those without ignore each other.
type FileLock struct {
	Owner      uint64
	Flock      bool
	Start, End uint64
	Write      bool   // excludes all others; false: only those that write
	PID        uint32 // process of the owner, for FindLock
}

// LockEnd is the end of a lock on all bytes that a file may have.
const LockEnd = locktable.Max

// ErrDeadlock is the cause of the error of a lock that would wait for ever.
var ErrDeadlock = filelocks.ErrDeadlock

// Lock takes an advisory lock, in place of what its owner has in the range. The locks of all
// clients of the cluster exclude each other. Without wait it fails with Busy if another owner has
// the lock. A wait that would never end fails with Conflict, caused by ErrDeadlock. QuotaExceeded:
// the file or the session has too many locks. After an error the owner has what it had before, but a
// flock that waited has nothing.
//
// The locks end with the client's session. If that happens before their owner unlocks them, every
// change of the file through this client fails with IOError until the owner unlocks.
func (n Inodes) Lock(ctx context.Context, inode moraine.InodeID, l FileLock, wait bool) error {
	return retry.Wrap("client.Lock", inode.String(), n.c.locks.Lock(ctx, inode, filelocks.Lock(l), wait))
}

// Unlock takes the owner's locks in the range away; l.Write does not matter. Without any it does
// nothing. If ctx ends first, or the service does not answer, it continues in the background.
// QuotaExceeded: the rest would be too many locks, and nothing changes.
func (n Inodes) Unlock(ctx context.Context, inode moraine.InodeID, l FileLock) error {
	return retry.Wrap("client.Unlock", inode.String(), n.c.locks.Unlock(ctx, inode, filelocks.Lock(l)))
}

// FindLock returns a lock of another owner that prevents l, if there is one, and whether it is a
// lock of this client.
func (n Inodes) FindLock(ctx context.Context, inode moraine.InodeID, l FileLock) (by FileLock, own, found bool, err error) {
	held, own, found, err := n.c.locks.Find(ctx, inode, filelocks.Lock(l))
	return FileLock(held), own, found, retry.Wrap("client.FindLock", inode.String(), err)
}

// WriteBack commits all earlier writes, so that other clients see them. It leaves their errors to
// the next Flush, Sync or Close.
func (h *Handle) WriteBack(ctx context.Context) error {
	if err := h.check("client.WriteBack", 0); err != nil {
		return err
	}
	return retry.Wrap("client.WriteBack", h.ct.ref, h.ct.flush(ctx))
}

// protected fails if this client lost a lock on the inode and the owner has not unlocked it.
func (c *Client) protected(inode moraine.InodeID) error {
	if !c.locks.Any(inode) {
		return nil
	}
	return c.locks.Check(inode, c.meta.Current().Id)
}

// change sends a change of a file's content. If this client has locks on the file, it sends the change
// under their session and no other.
func (c *Client) change(ctx context.Context, inode moraine.InodeID, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if !c.locks.Any(inode) {
		return c.meta.Do(ctx, req)
	}
	s := c.meta.Current()
	if err := c.locks.Check(inode, s.Id); err != nil {
		return nil, err
	}
	resp, err := c.meta.DoUnder(ctx, req, s)
	if retry.IsKind(err, moraine.SessionExpired) {
		return nil, c.locks.LostError(inode)
	}
	return resp, err
}
