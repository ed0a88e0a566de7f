package session

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/delegation"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// throughDesk lets the desk answer a request, or sends it when what is queued before it has arrived.
func throughDesk(ctx context.Context, desk *delegation.Desk, req *wire.MetaRequest, send func() (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
	if resp, done, err := desk.Do(ctx, req); done {
		return resp, err
	}
	end, err := desk.Begin(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, err := send()
	if end != nil {
		end(resp, err)
	}
	return resp, err
}

// delegated is the service as a desk needs it.
type delegated struct{ m *Conn }

// Send implements delegation.Service.
func (s delegated) Send(ctx context.Context, req *wire.MetaRequest, session uint64) (*wire.MetaResponse, error) {
	now := s.m.Current()
	if now == nil || now.Id != session {
		return nil, &moraine.Error{Op: opName(req), Kind: moraine.SessionExpired, Err: fmt.Errorf("session %s has ended", moraine.SessionID(session))}
	}
	if ops.Of(req).Numbered(req) {
		return s.m.under(ctx, req, now)
	}
	resp, _, err := s.m.once(ctx, req, now, false)
	return resp, err
}

// Standing implements delegation.Service.
func (s delegated) Standing() delegation.Standing {
	c := s.m.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() {
		return delegation.Standing{}
	}
	return delegation.Standing{Session: c.standing.session, Epoch: c.standing.epoch}
}

// Newest implements delegation.Service.
func (s delegated) Newest() delegation.Standing {
	c := s.m.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	return delegation.Standing{Session: c.standing.session, Epoch: c.standing.epoch}
}

// Hide implements delegation.Service.
func (s delegated) Hide(inodes ...uint64) {
	c := s.m.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, inode := range inodes {
		c.hidden[inode] = struct{}{}
		c.dropAttr(inode)
		if l := c.leases[inode]; l != nil {
			c.items -= len(l.entries)
			clear(l.entries)
			l.unlist()
		}
	}
}

// Show implements delegation.Service. Answers on their way may be old.
func (s delegated) Show(inodes ...uint64) {
	c := s.m.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, inode := range inodes {
		delete(c.hidden, inode)
		c.events.add(inode)
	}
}

// List implements delegation.Service. As of any listing, the cache keeps a quarter of what it holds at most: more would
// evict everything else.
func (s delegated) List(ctx context.Context, op *wire.ReadDir, session uint64) (r *wire.ReadDirReply, keep func(entries []*wire.DirEntry, before int), err error) {
	t := s.m.cache.ask()
	resp, err := s.Send(ctx, &wire.MetaRequest{LeaseEpoch: t.epoch, Op: &wire.MetaRequest_ReadDir{ReadDir: op}}, session)
	if r = resp.GetReadDir(); err == nil && r == nil {
		err = retry.BadReply("read directory")
	}
	return r, func(entries []*wire.DirEntry, before int) {
		s.m.cache.fill(t, resp.GetLease(), func(f *filling) {
			for _, e := range entries[:min(len(entries), max(0, f.c.limit/4-before))] {
				f.attr(e.Attr)
			}
		})
	}, err
}

// Attr implements delegation.Service.
func (s delegated) Attr(inode uint64) *wire.Attr { return s.m.cache.attr(moraine.InodeID(inode)) }

// AwaitLent implements delegation.Service.
func (s delegated) AwaitLent(ctx context.Context, req *wire.MetaRequest) {
	s.m.cache.loans.before(ctx, req)
}

// Settle implements delegation.Service. The lease over an inode is that of its directory, or its own.
func (s delegated) Settle(ctx context.Context, inodes []uint64) {
	var touches []*wire.Touch
	for _, lease := range inodes {
		for _, inode := range inodes {
			touches = append(touches, &wire.Touch{Lease: lease, Inode: inode})
		}
	}
	c := s.m.cache
	c.mu.Lock()
	o := c.loans.owes(touches, true, c.clock.Now())
	c.mu.Unlock()
	if !o.until.IsZero() {
		c.loans.settle(ctx, o)
	}
}

// shows reports whether an inode is not hidden. The caller holds the mutex.
func (c *cache) shows(inode uint64) bool {
	_, ok := c.hidden[inode]
	return !ok
}

// hiddenAt returns the inode that has a name, if its attributes are hidden, and 0 otherwise.
func (c *cache) hiddenAt(dir moraine.InodeID, name string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.hidden) == 0 || !c.usable() {
		return 0
	}
	inode, _ := c.find(uint64(dir), name)
	if c.shows(inode) {
		return 0
	}
	return inode
}
