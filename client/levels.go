package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// levelOf returns the lowest level at which chunks of the stripes were acknowledged.
func levelOf(stripes []*wire.Stripe) uint32 {
	level := uint32(moraine.NVMe)
	for _, s := range stripes {
		for _, c := range s.GetChunks() {
			level = min(level, c.GetLevel())
		}
	}
	return level
}

// SingleHost reports whether, as far as the client knows, at most one host is up with a device
// that takes chunks. Bytes acknowledged at level memory are then a single copy without
// protection, whatever devices they are on.
func (c *Client) SingleHost(ctx context.Context) bool { return c.io.Topology.SingleHost(ctx) }

// WaitNVMe returns when all bytes of a file are at level nvme at least. Chunkservers write
// bytes acknowledged at level memory to their devices, and the file's level rises a second or
// two later. It fails with Lost if bytes that were only in memory are lost. It fails with
// Timeout after Config.Patience, unless ctx ends before; then bytes are on devices that do not
// answer, or wait for repair.
func (n Inodes) WaitNVMe(ctx context.Context, inode moraine.InodeID) error {
	return retry.Wrap("client.WaitNVMe", inode.String(), n.waitNVMe(ctx, inode))
}

// risePoll is the longest pause between two polls of a file's level.
const risePoll = 200 * time.Millisecond

func (n Inodes) waitNVMe(ctx context.Context, inode moraine.InodeID) error {
	ctx, cancel := context.WithTimeout(ctx, n.c.cfg.Patience)
	defer cancel()
	if n.c.meta.Desk.Unsent(uint64(inode)) { // close at level local did not wait for it
		if err := n.c.meta.Desk.Sync(ctx, uint64(inode)); err != nil {
			return err
		}
	}
	for try := 0; ; try++ {
		a, err := n.stat(ctx, inode)
		switch {
		case err != nil:
			return err
		case a.Stored == 0 || moraine.Level(a.Level) >= moraine.NVMe:
			return nil
		case isLost(a):
			return &moraine.Error{Kind: moraine.Lost, Err: errors.New("bytes of the file were only in memory, and are lost")}
		}
		if !retry.PauseUpTo(ctx, n.c.clock, try, risePoll) {
			return retry.ContextErrorAfter(ctx, "wait for level nvme", fmt.Errorf("the file is at level %s", moraine.Level(a.Level)))
		}
	}
}

// awaitNVMe returns when the newest content received is at level nvme at least.
func (f *fileState) awaitNVMe(ctx context.Context) error {
	f.mu.Lock()
	a := f.base
	safe := a.Stored == 0 || moraine.Level(a.Level) >= moraine.NVMe
	f.mu.Unlock()
	if safe {
		return nil
	}
	return f.c.Inodes().waitNVMe(ctx, f.sender.Inode)
}

// awaitProtected returns when the committed bytes survive the loss of at least one host, or are
// at nvme. The reply to a commit at level memory may say that nothing protects the bytes, and
// only this client receives that reply.
func (q *committer) awaitProtected(ctx context.Context) error {
	q.mu.Lock()
	bare := q.bare
	q.mu.Unlock()
	if bare == 0 {
		return nil
	}
	if err := q.awaitNVMe(ctx); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bare == bare { // otherwise a later commit raised it
		q.bare = 0
	}
	return nil
}

// sawProtection records the protection that a commit's reply states. The caller holds the
// mutex.
func (q *committer) sawProtection(op *wire.Commit, r *wire.CommitReply) {
	if r == nil || len(op.Stripes) == 0 || moraine.Level(op.Level) != moraine.Memory || r.Protects > 0 {
		return
	}
	q.bare++
	q.sender.Level = moraine.NVMe
}
