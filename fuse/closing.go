package fuse

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// closings are the closes and releases whose locks are not given back yet, for example because what
// was written under the locks is not committed. A new lock of the same owner waits for them, so that
// they do not take it away.
type closings struct {
	mu sync.Mutex
	of map[closer]*closing
}

// closer is an owner of fcntl locks whose file was closed.
type closer struct {
	inode moraine.InodeID
	owner uint64
}

// closing is the closes of one closer.
type closing struct {
	count int
	ended chan struct{}
}

// begin records a close; the caller calls end when its locks are given back.
func (c *closings) begin(who closer) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[closer]*closing{}
	}
	at := c.of[who]
	if at == nil {
		at = &closing{ended: make(chan struct{})}
		c.of[who] = at
	}
	at.count++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if at.count--; at.count == 0 {
			delete(c.of, who)
			close(at.ended)
		}
	}
}

// wait waits until the locks of earlier closes are given back.
func (c *closings) wait(ctx context.Context, who closer) error {
	c.mu.Lock()
	at := c.of[who]
	c.mu.Unlock()
	if at == nil {
		return nil
	}
	select {
	case <-at.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// closedBy ends the locks of a process that closes the file, once what was written is committed. The
// process may have written through another open file. failed says that the commit of this close failed.
func (o *openFiles) closedBy(ctx context.Context, f *file, process uint64, failed bool) {
	committed := f.writes && !failed
	if committed || !f.state.locks.has(process) || !pending(f.handle.WriteBack(ctx)) {
		o.unlockProcess(ctx, f, process)
		return
	}
	end := o.closings.begin(closer{f.state.inode, process})
	f.unlocking.Add(1)
	o.background.Go(func() {
		defer f.unlocking.Done()
		defer end()
		if o.settled(f) {
			o.unlockProcess(o.life, f, process)
		}
	})
}

// settleEvery is the pause between two attempts to commit what locks protect.
const settleEvery = time.Second

// settled returns when what was written to the file is committed or lost. It is false if the mount
// ends before.
func (o *openFiles) settled(f *file) bool {
	for pending(f.handle.WriteBack(o.unlocking)) {
		select {
		case <-o.unlocking.Done():
			return false
		case <-time.After(settleEvery):
		}
	}
	return true
}

// unlockProcess ends the locks of a process that closes the file.
func (o *openFiles) unlockProcess(ctx context.Context, f *file, process uint64) {
	if err := o.unlock(ctx, f.state, client.FileLock{Owner: process, End: client.LockEnd}); err != nil {
		o.log.Warn("the locks of a closed file are not given back yet", "inode", f.state.inode, "err", err)
	}
}

// beforeRelease returns when the locks that were made through an open file protect nothing any more,
// or the mount ends.
func (o *openFiles) beforeRelease(f *file) {
	if f == nil {
		return
	}
	f.unlocking.Wait()
	if f.state.locks.through(f.number) {
		o.settled(f)
	}
}

// unlockHandle ends what was locked through an open file that is released.
func (o *openFiles) unlockHandle(f *file) {
	for _, owner := range f.state.locks.owners(f.number) {
		defer o.closings.begin(closer{f.state.inode, owner})()
	}
	for _, l := range f.state.locks.take(f.number) {
		if err := o.client.Inodes().Unlock(o.life, f.state.inode, l); err != nil {
			o.log.Warn("the locks of a released file are not given back yet", "inode", f.state.inode, "err", err)
		}
	}
}
