package client

import (
	"context"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// content is the state that all handles of a client on one inode share. It takes writes, and sends
// them: written bytes go into a batch (batch.go) that becomes a stripe.
//
// Locks, outermost first:
//   - gate: held to change the content, across waits for memory and slots;
//   - publish: held to send changes to the service, across requests;
//   - mu: held across no wait.
type content struct {
	committer
	end context.CancelFunc // ends life

	room  room
	gate  stripeio.Turn
	slots chan struct{} // one element for each batch that is being sent

	users int // handles and calls; guarded by contents.mu
}

// contents are the files that a client has open for reading and writing. Safe
// for concurrent use.
type contents struct {
	mu sync.Mutex
	of map[moraine.InodeID]*content
	// opening are the inodes that an open has requested from the service.
	opening map[moraine.InodeID]*opening
	orphans orphans // of mu
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
			s.closed(inode)
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
		s.closed(ct.sender.Inode)
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

func newContent(ctx context.Context, c *Client, a *wire.Attr, opts HandleOptions) *content {
	inode := moraine.InodeID(a.Inode)
	ct := &content{gate: stripeio.NewTurn(&c.io.Limits.File), slots: make(chan struct{}, c.cfg.StripesInFlight), committer: committer{
		publish: stripeio.NewTurn(&c.io.Limits.File), changed: make(chan struct{}), fileState: fileState{
			c: c, ref: inode.String(), base: a, extents: stripeio.NewExtentMap(c.io, a.Inode, a.Generation),
			sender: stripeio.Sender{Engine: c.io, Inode: inode, Level: opts.Level, Key: stripeio.GrantKey{Tenant: a.Tenant, Scheme: opts.Scheme, Dir: moraine.InodeID(a.Parent)}}}}}
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
