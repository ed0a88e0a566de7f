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

// content is what all handles of a client on one inode share: the newest
// content of the file that the service told of, and over it what they wrote and
// the service does not know yet.
//
// Written bytes go through a batch (batch.go) that becomes a stripe; spans says
// which batch has the newest bytes of a range. Batches are committed in the
// order they were sent in, so that a later one lies over an earlier one, and an
// earlier one needs no care for what was written over it since.
//
// Locks, outermost first: gate (whoever changes the content: held across waits
// for memory and slots), publish (whoever asks the service to change it: held
// across requests), mu (held across no wait).
type content struct {
	c      *Client
	sender stripeio.Sender
	ref    string
	// life ends with the last handle. What is sent and committed in the
	// background runs under it.
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	room    room
	gate    stripeio.Turn
	publish stripeio.Turn
	slots   chan struct{} // one element for each batch being sent

	// made is the file where it was made under an exclusive lease; nil else.
	made *session.Made

	users int // handles and calls; guarded by contents.mu

	mu      sync.Mutex
	base    *wire.Attr          // newest generation heard of; not changed, but replaced
	extents *stripeio.ExtentMap // of base's generation
	doubted bool                // base may be older than what this client did itself
	spans   spans
	open    []*batch // being filled; also guarded by gate: both are held to change it
	queue   []*batch // sent and not committed, in order
	seq     int      // of the last batch sent
	wanted  int      // batches up to this one are to be committed
	running bool     // commitWanted is
	changed chan struct{}
	wrote   time.Time // when the last write came
	bare    int       // commits at level memory that protect from nothing, and may not be at nvme yet
	faults  faults
}

// contents are the files that a client has open for reading and writing. Safe
// for concurrent use.
type contents struct {
	mu sync.Mutex
	of map[moraine.InodeID]*content
	// opening are the inodes that the service is being asked for, to be opened.
	opening map[moraine.InodeID]*opening
}

// opening is the opens of one inode that are under way.
type opening struct {
	count int
	ended bool // a content of the inode has ended since the first of them began
}

// open notes that an inode is being opened, until done is called, which says whether what
// the service answered meanwhile may be older than what this client has committed.
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

// hold returns the content of an inode that is open, to be let go of, or nil.
func (s *contents) hold(inode moraine.InodeID) *content {
	s.mu.Lock()
	defer s.mu.Unlock()
	ct := s.of[inode]
	if ct != nil {
		ct.users++
	}
	return ct
}

// holdOr is hold that takes made where the inode is not open.
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

// letGo ends one use. The last one ends the content: what was not committed
// then is given up.
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

// all returns the contents that are open, each to be let go of.
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

// close ends the content: nothing of it is under way or held afterwards.
func (ct *content) close() {
	ct.gate.Slot <- struct{}{} // for good: who waits for memory may still ask us to yield
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

// giveBack ends a batch that is not sent.
func (ct *content) giveBack(b *batch) {
	ct.c.io.Writes.Release(b.free())
	if b.ticket != nil {
		ct.c.io.Grants.Settle(b.ticket, false)
		b.ticket = nil
	}
}

// size returns the length of the file with what was written to it. The mutex is
// held.
func (ct *content) size() int64 { return max(int64(ct.base.Size), ct.spans.end()) }

// sawBase takes what the service said of the inode, unless something newer is
// known. The mutex is held.
func (ct *content) sawBase(a *wire.Attr) {
	if a.Generation < ct.base.Generation {
		return
	}
	if a.Generation != ct.base.Generation {
		ct.extents = stripeio.NewExtentMap(ct.c.io, a.Inode, a.Generation)
	}
	ct.base = a
}

// refresh asks the service what the newest content is.
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

// signal wakes whoever waits for a batch to go on. The mutex is held.
func (ct *content) signal() {
	close(ct.changed)
	ct.changed = make(chan struct{})
}

// faults are the errors that no call has returned yet: each handle that was
// open then gets the newest once.
type faults struct {
	count  int
	last   error
	unseen bool // nobody was told yet
}

// add notes an error. The content's mutex is held.
func (f *faults) add(err error) { f.count, f.last, f.unseen = f.count+1, err, true }

// begin returns what a new handle has seen: all but what nobody was told of.
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
