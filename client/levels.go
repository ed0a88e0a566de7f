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

// levelOf returns the least level that chunks of the stripes were acknowledged at.
func levelOf(stripes []*wire.Stripe) uint32 {
	level := uint32(moraine.NVMe)
	for _, s := range stripes {
		for _, c := range s.GetChunks() {
			level = min(level, c.GetLevel())
		}
	}
	return level
}

// SingleHost reports whether one host of the cluster alone, or none, is alive and has a
// device that takes chunks, as far as is known: then what is acknowledged at level memory
// is one copy, whatever devices it is on, and protected from nothing.
func (c *Client) SingleHost(ctx context.Context) bool { return c.io.Topology.SingleHost(ctx) }

// IsLost reports whether a file has lost bytes that were in memory alone: it has
// content, and that is at no level.
func IsLost(a *wire.Attr) bool {
	return a.GetType() == wire.FileType_FILE_TYPE_REGULAR && a.GetStored() > 0 && a.GetLevel() == 0
}

// WaitNVMe returns when all bytes that a file has are at level nvme at least: what was
// acknowledged at level memory is being written to the devices, and the file rises a
// second or two after it is. It fails with Lost where bytes are gone that were in memory
// alone, and, unless ctx ends before, with Timeout after Config.Patience: then bytes are
// on devices that are away, or wait for their repair.
func (n Inodes) WaitNVMe(ctx context.Context, inode moraine.InodeID) error {
	return retry.Wrap("client.WaitNVMe", inode.String(), n.waitNVMe(ctx, inode))
}

// risePoll is the longest pause between two looks at the level of a file.
const risePoll = 200 * time.Millisecond

func (n Inodes) waitNVMe(ctx context.Context, inode moraine.InodeID) error {
	ctx, cancel := context.WithTimeout(ctx, n.c.cfg.Patience)
	defer cancel()
	for try := 0; ; try++ {
		a, err := n.Stat(ctx, inode)
		switch {
		case err != nil:
			return err
		case a.Stored == 0 || moraine.Level(a.Level) >= moraine.NVMe:
			return nil
		case IsLost(a):
			return &moraine.Error{Kind: moraine.Lost, Err: errors.New("bytes of the file were in memory alone, and are gone")}
		}
		if !retry.PauseUpTo(ctx, n.c.clock, try, risePoll) {
			return retry.ContextErrorAfter(ctx, "wait for level nvme", fmt.Errorf("the file is at level %s", moraine.Level(a.Level)))
		}
	}
}

// awaitNVMe returns when the newest content heard of is at level nvme at least.
func (ct *content) awaitNVMe(ctx context.Context) error {
	ct.mu.Lock()
	a := ct.base
	safe := a.Stored == 0 || moraine.Level(a.Level) >= moraine.NVMe
	ct.mu.Unlock()
	if safe {
		return nil
	}
	return ct.c.Inodes().waitNVMe(ctx, ct.sender.Inode)
}

// awaitProtected returns when what was committed is protected from the loss of a
// host at least, or at nvme: a commit at level memory may say that it protects from
// nothing, and nobody but us hears that.
func (ct *content) awaitProtected(ctx context.Context) error {
	ct.mu.Lock()
	bare := ct.bare
	ct.mu.Unlock()
	if bare == 0 {
		return nil
	}
	if err := ct.awaitNVMe(ctx); err != nil {
		return err
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	if ct.bare == bare { // else more was, since
		ct.bare = 0
	}
	return nil
}

// sawProtection takes what a commit said that it protects from. The mutex is held.
func (ct *content) sawProtection(op *wire.Commit, r *wire.CommitReply) {
	if r == nil || len(op.Stripes) == 0 || moraine.Level(op.Level) != moraine.Memory || r.Protects > 0 {
		return
	}
	ct.bare++
	ct.sender.Level = moraine.NVMe
}
