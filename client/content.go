package client

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// content is the state that all handles of a client on one inode share. It has the newest
// content that the service reported, and over it the uncommitted writes.
//
// Written bytes go into a batch (batch.go) that becomes a stripe. spans says which batch has
// the newest bytes of a range. The client commits batches in the order in which it sent them.
// So a later one lies over an earlier one, and an earlier one may contain overwritten bytes.
//
// Locks, outermost first:
//   - gate: held to change the content, across waits for memory and slots;
//   - publish: held to send changes to the service, across requests;
//   - mu: held across no wait.
type content struct {
	c      *Client
	sender stripeio.Sender
	ref    string
	// life ends with the last handle. Background sends and commits run under it.
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	room    room
	gate    stripeio.Turn
	publish stripeio.Turn
	slots   chan struct{} // one element for each batch that is being sent

	// made is the file, if this client created it under an exclusive lease; otherwise nil.
	made *session.Made

	users int // handles and calls; guarded by contents.mu

	mu      sync.Mutex
	base    *wire.Attr          // newest generation received; replaced, never changed
	extents *stripeio.ExtentMap // of base's generation
	doubted bool                // base may be older than this client's own commits
	spans   spans
	open    []*batch // being filled; a change needs both gate and mu
	queue   []*batch // sent and not committed, in order
	seq     int      // of the last batch sent
	wanted  int      // number of the last batch that is to be committed
	running bool     // commitWanted runs
	changed chan struct{}
	wrote   time.Time // time of the last write
	bare    int       // commits at level memory without protection that may not be at nvme yet
	faults  faults
}

// contents are the files that a client has open for reading and writing. Safe
// for concurrent use.
type contents struct {
	mu sync.Mutex
	of map[moraine.InodeID]*content
	// opening are the inodes that an open has requested from the service.
	opening map[moraine.InodeID]*opening
}

// opening counts the running opens of one inode.
type opening struct {
	count int
	ended bool // a content of the inode ended after the first of them began
}

// open records that an inode is being opened, until the caller calls done. done reports whether
// the service's answer may be older than this client's commits.
func (s *contents) open(inode moraine.InodeID) (done func() (old bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.opening[inode]
	if o == nil {
		if s.opening == nil {
			s.opening = map[moraine.InodeID]*opening{}
		}
		o = &opening{}
		s.opening[inode] = o
	}
	o.count++
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.count--; o.count == 0 {
			delete(s.opening, inode)
		}
		return o.ended
	}
}

// hold returns the content of an open inode, or nil. The caller ends the use with letGo.
func (s *contents) hold(inode moraine.InodeID) *content {
	s.mu.Lock()
	defer s.mu.Unlock()
	ct := s.of[inode]
	if ct != nil {
		ct.users++
	}
	return ct
}

// holdOr is hold, but takes made if the inode is not open.
func (s *contents) holdOr(inode moraine.InodeID, made *content) *content {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[moraine.InodeID]*content{}
	}
	ct := s.of[inode]
	if ct == nil {
		ct = made
		s.of[inode] = ct
	}
	ct.users++
	return ct
}

// letGo ends one use. The last one ends the content and discards what is not committed.
func (s *contents) letGo(ct *content) {
	s.mu.Lock()
	ct.users--
	last := ct.users == 0
	if last {
		delete(s.of, ct.sender.Inode)
		if o := s.opening[ct.sender.Inode]; o != nil {
			o.ended = true
		}
	}
	s.mu.Unlock()
	if last {
		ct.close()
	}
}

// all returns the open contents. The caller ends the use of each with letGo.
func (s *contents) all() []*content {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*content, 0, len(s.of))
	for _, ct := range s.of {
		ct.users++
		out = append(out, ct)
	}
	return out
}

func newContent(ctx context.Context, c *Client, a *wire.Attr, made *session.Made, opts HandleOptions) *content {
	inode := moraine.InodeID(a.Inode)
	ct := &content{c: c, ref: inode.String(), gate: stripeio.NewTurn(&c.io.Limits.File), publish: stripeio.NewTurn(&c.io.Limits.File),
		slots: make(chan struct{}, c.cfg.StripesInFlight), base: a,
		extents: stripeio.NewExtentMap(c.io, a.Inode, a.Generation), changed: make(chan struct{}), made: made,
		sender: stripeio.Sender{Engine: c.io, Inode: inode, Level: opts.Level, Key: stripeio.GrantKey{Tenant: a.Tenant, Scheme: opts.Scheme, Dir: moraine.InodeID(a.Parent)}}}
	ct.life, ct.end = context.WithCancel(context.WithoutCancel(ctx))
	return ct
}

// close ends the content: afterwards no request runs for it and it has no memory or grants.
func (ct *content) close() {
	ct.gate.Slot <- struct{}{} // for good: a writer that waits for memory may still call Yield
	ct.end()
	ct.work.Wait()
	ct.c.io.Writes.Leave(ct)
	ct.mu.Lock()
	defer ct.mu.Unlock()
	for _, b := range ct.open {
		ct.giveBack(b)
	}
	for _, b := range ct.queue {
		ct.sender.Release(b.sent)
	}
	ct.open, ct.queue, ct.spans = nil, nil, nil
}

// giveBack releases a batch that is not sent.
func (ct *content) giveBack(b *batch) {
	ct.c.io.Writes.Release(b.free())
	if b.ticket != nil {
		ct.c.io.Grants.Settle(b.ticket, false)
		b.ticket = nil
	}
}

// size returns the length of the file including uncommitted writes. The caller holds the mutex.
func (ct *content) size() int64 { return max(int64(ct.base.Size), ct.spans.end()) }

// sawBase takes the attributes that the service returned, unless newer ones are known. The
// caller holds the mutex.
func (ct *content) sawBase(a *wire.Attr) {
	if a.Generation < ct.base.Generation {
		return
	}
	if a.Generation != ct.base.Generation {
		ct.extents = stripeio.NewExtentMap(ct.c.io, a.Inode, a.Generation)
	}
	ct.base = a
}

// refresh requests the newest attributes from the service.
func (ct *content) refresh(ctx context.Context) error {
	a, err := ct.c.Inodes().Stat(ctx, ct.sender.Inode)
	if err != nil {
		return err
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.sawBase(a)
	ct.doubted = false
	return nil
}

// signal wakes the goroutines that wait for a batch to change state. The caller holds the
// mutex.
func (ct *content) signal() {
	close(ct.changed)
	ct.changed = make(chan struct{})
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
