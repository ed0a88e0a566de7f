package agent

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/limit"
)

const (
	// smallFrame is how long a request may be without a share of the memory for frames, in bytes. Only a seal and a
	// fetch may be longer.
	smallFrame = 64 << 10
	// frameMemory bounds the large frames of all connections, in bytes, from their heads to their replies. As Go
	// values they take several times that.
	frameMemory = 8 * agentproto.MaxFrame
	// maxEntries bounds the tensors and blobs of a seal, and the slices and blobs of a fetch.
	maxEntries = 200_000
	// framePatience is how long a frame may take from its first byte to its last.
	framePatience = time.Minute
	// memoryPatience is how long a large frame waits for the requests of others.
	memoryPatience = 5 * time.Minute
)

// frames shares memory for large frames among users. A user has at most as much as is free, so that another user always
// gets some. Its methods may be called concurrently.
type frames struct {
	wait limit.Resource

	mu    sync.Mutex
	used  int64
	users map[uint32]int64
	// changed is closed and replaced whenever a frame ends.
	changed chan struct{}
}

func newFrames() *frames {
	return &frames{users: map[uint32]int64{}, changed: make(chan struct{}),
		wait: limit.Resource{Name: "memory of large requests", Patience: memoryPatience, Advice: "send fewer large seals and fetches at a time"}}
}

// take waits until a user may have n bytes, which give returns.
func (f *frames) take(ctx context.Context, uid uint32, n int64) error {
	changed := f.tryTake(uid, n)
	if changed == nil {
		return nil
	}
	return f.wait.Wait(ctx, func(ctx context.Context) error {
		for changed != nil {
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
			changed = f.tryTake(uid, n)
		}
		return nil
	})
}

// tryTake takes n bytes and returns nil, or returns what is closed once there may be room.
func (f *frames) tryTake(uid uint32, n int64) (changed chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users[uid]+n > frameMemory-f.used-n {
		return f.changed
	}
	f.used += n
	f.users[uid] += n
	return nil
}

func (f *frames) give(uid uint32, n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used -= n
	if f.users[uid] -= n; f.users[uid] == 0 {
		delete(f.users, uid)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// receive receives a request, of which nothing bounds the cost but the agent.
func (c *conn) receive(req *agentproto.Request) error {
	most := agentproto.FrameBounds{Bytes: agentproto.MaxFrame, Entries: maxEntries, Patience: framePatience, Admit: c.admitFrame}
	if !c.greeted { // a stranger's connection has a deadline already
		most.Bytes, most.Patience = maxHello, 0
	}
	files, err := c.c.ReceiveWithin(req, most)
	for _, f := range files {
		_ = f.Close() // a trainer has none to give
	}
	if err == nil && c.frame > 0 && req.Seal == nil && req.Fetch == nil {
		err = c.invalid("a request of %d bytes that is no seal and no fetch: %d at most", c.frame, smallFrame)
	}
	return err
}

// admitFrame gets memory for a large frame, until its request is answered.
func (c *conn) admitFrame(bytes uint32) error {
	if bytes <= smallFrame {
		return nil
	}
	if err := c.a.frames.take(c.a.work, c.uid, int64(bytes)); err != nil {
		return err
	}
	c.frame = int64(bytes)
	return nil
}

// endFrame gives the memory of the request back.
func (c *conn) endFrame() {
	if c.frame > 0 {
		c.a.frames.give(c.uid, c.frame)
		c.frame = 0
	}
}
