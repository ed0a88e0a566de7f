package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// fileState is what the client knows of an open file: the newest content that the service
// reported, and over it the uncommitted writes. spans says which batch has the newest bytes of a
// range.
type fileState struct {
	c      *Client
	sender stripeio.Sender
	ref    string

	mu      sync.Mutex
	base    *wire.Attr          // newest generation received; replaced, never changed
	extents *stripeio.ExtentMap // of base's generation
	doubted bool                // base may be older than this client's own commits
	spans   spans
	open    []*batch  // being filled; a change needs both the content's gate and mu
	wrote   time.Time // time of the last write
	faults  faults
}

// size returns the length of the file including uncommitted writes. The caller holds the mutex.
func (f *fileState) size() int64 { return max(int64(f.base.Size), f.spans.end()) }

// sawBase takes the attributes that the service returned, unless newer ones are known. The
// caller holds the mutex.
func (f *fileState) sawBase(a *wire.Attr) {
	if a.Generation < f.base.Generation {
		return
	}
	if a.Generation != f.base.Generation {
		f.extents = stripeio.NewExtentMap(f.c.io, a.Inode, a.Generation)
	}
	f.base = a
}

// refresh requests the newest attributes from the service.
func (f *fileState) refresh(ctx context.Context) error {
	a, err := f.c.Inodes().stat(ctx, f.sender.Inode)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sawBase(a)
	f.doubted = false
	return nil
}

// faults are write errors that no call has returned yet. Each handle that was open at the error
// gets the newest one once.
type faults struct {
	count  int
	last   error
	unseen bool // no call has returned it yet
}

// add records an error. The caller holds the content's mutex.
func (f *faults) add(err error) { f.count, f.last, f.unseen = f.count+1, err, true }

// begin returns how many errors a new handle counts as seen: all but one that no call has
// returned.
func (f *faults) begin() int {
	if f.unseen {
		return f.count - 1
	}
	return f.count
}

// report returns the newest error past what seen counts, once.
func (f *faults) report(seen *int) error {
	if *seen == f.count {
		return nil
	}
	*seen, f.unseen = f.count, false
	return f.last
}

func (f *fileState) attr() *wire.Attr {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := proto.Clone(f.base).(*wire.Attr)
	a.Size = uint64(f.size())
	if len(f.spans) > 0 {
		a.Mtime = f.wrote.UnixNano() // also where the time that was set lies in the future
		a.Ctime = max(a.Ctime, a.Mtime)
	}
	return a
}

// overwrite replaces bytes at off in a batch that is not sent yet, as far as they are
// contiguous.
func (f *fileState) overwrite(p []byte, off int64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.spans.first(off)
	if i == len(f.spans) || f.spans[i].off > off || f.spans[i].b.state != batchOpen {
		return 0
	}
	s := f.spans[i].from(off)
	f.wrote = f.c.clock.Now()
	return copy(s.mem, p)
}

// fill copies into the batch's room, and returns how many bytes it took.
func (f *fileState) fill(b *batch, p []byte, off, limit int64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	room := b.room()
	n := copy(room[:min(int64(len(room)), limit-b.length)], p)
	b.used += n
	b.length += int64(n)
	b.tail = off + int64(n)
	if !f.spans.put(span{off: off, end: b.tail, b: b, mem: room[:n]}) {
		b.pieces++
	}
	f.wrote = f.c.clock.Now()
	return n
}

// fail discards a batch: its bytes are lost. The caller holds the mutex.
func (f *fileState) fail(b *batch, err error) {
	b.state, b.err = batchFailed, err
	f.spans.drop(func(o *batch) bool { return o == b })
	f.sender.Release(b.sent)
	b.sent = nil
	if !b.appended { // the caller of Append gets the error directly
		f.faults.add(err)
		f.c.log.Warn("written bytes are lost", "inode", f.sender.Inode, "err", err)
	}
}
