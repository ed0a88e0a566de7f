package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
	"google.golang.org/protobuf/proto"
)

// sendAll sends the wanted files of a directory, batch after batch, and at the end returns the
// lease if requested. Only one runs for a directory, so that a file is never visible without
// those created before it.
func (e *exclusive) sendAll(ctx context.Context, h *hold) {
	c := e.cache
	for try := 0; ; {
		c.mu.Lock()
		batch := h.next()
		end := h.back && len(batch) == len(h.queue)
		if len(batch) == 0 && !end {
			h.sending = false
			c.mu.Unlock()
			return
		}
		for _, m := range batch {
			m.sent = true
		}
		c.mu.Unlock()
		replies, err := e.send(ctx, h, batch, end)
		over := e.sent(h, batch, replies, err)
		switch {
		case len(batch) > 0:
			try = 0
		case end && (err == nil || !retry.IsKind(err, moraine.Timeout) || !retry.Pause(ctx, c.clock, try)):
			over = true // the service recalls what a refusal leaves when another client wants it
		default:
			try++
		}
		if end && (err == nil || over) {
			c.mu.Lock()
			again := len(h.queue) > 0 // cannot be: no file is created after back is set
			if h.sending = again; !again && e.holds[h.dir] == h {
				delete(e.holds, h.dir)
			}
			c.mu.Unlock()
			if !again {
				return
			}
		}
	}
}

// next returns the files to send next: the wanted ones and all before them, as many as one
// request takes. The caller holds the mutex.
func (h *hold) next() []*Made {
	last := len(h.queue) // index past the last wanted one
	for !h.back && last > 0 && !h.queue[last-1].wanted {
		last--
	}
	n, size := 0, 0
	for n < min(last, sendBatch) {
		if size += proto.Size(h.queue[n].commit); n > 0 && size > sendBytes {
			break
		}
		n++
	}
	return h.queue[:n:n]
}

// send makes one request of the creates of a batch, each with its first content
// if any, and of the end of the exclusive lease.
func (e *exclusive) send(ctx context.Context, h *hold, batch []*Made, end bool) (replies []*wire.MetaResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.meta.patience)
	defer cancel()
	op := &wire.Batch{}
	e.cache.mu.Lock()
	since := h.since
	e.cache.mu.Unlock()
	epoch := e.cache.epochOf(h.session.Id)
	add := func(req *wire.MetaRequest) error {
		n, err := h.session.numbers.take(ctx)
		if err != nil {
			return err
		}
		req.LeaseEpoch = epoch
		op.Requests = append(op.Requests, stamp(req, h.session, n))
		return nil
	}
	unknown := false
	defer func() {
		for i, r := range op.Requests {
			h.session.numbers.end(r.Number, unknown && err != nil)
			if err == nil && replies[i].GetError() == nil { // a refused one may not have reached the state
				h.session.numbers.reported(r.GivenUp)
			}
		}
	}()
	for _, m := range batch {
		req := &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: m.op}}
		if m.commit != nil {
			req.Op = &wire.MetaRequest_Commit{Commit: m.commit}
		}
		if err := add(req); err != nil {
			return nil, err
		}
	}
	if end {
		if err := add(&wire.MetaRequest{Op: &wire.MetaRequest_EndHold{EndHold: &wire.EndHold{Directory: h.dir, Since: since}}}); err != nil {
			return nil, err
		}
	}
	began := e.meta.Clock.Now()
	var resp *wire.MetaResponse
	resp, unknown, err = e.meta.exchange(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: op}}, h.session, 0)
	e.meta.metrics.MetaSeconds.Observe(e.meta.Clock.Since(began).Seconds())
	replies = resp.GetBatch().GetResponses()
	if err == nil && len(replies) != len(op.Requests) {
		err = retry.BadReply("batch")
	}
	if unknown {
		err = unsure(ctx, "batch", err)
	}
	if retry.IsKind(err, moraine.SessionExpired) {
		_, _ = e.meta.open(ctx, h.session) // the session's renewals log a failure of this
	}
	if err != nil && unknown { // a later application must be recalled from us too
		e.cache.takeUp(nil, nil, true, true)
	}
	return replies, err
}

// epochOf returns the epoch of a session's standing, or 0.
func (c *cache) epochOf(session uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.standing.session != session {
		return 0
	}
	return c.standing.epoch
}

// sent processes the outcome of a batch. It returns whether the session has ended.
func (e *exclusive) sent(h *hold, batch []*Made, replies []*wire.MetaResponse, err error) bool {
	c := e.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range batch {
		if m.Err = err; err == nil {
			m.reply = replies[i]
			if bad := replies[i].GetError(); bad != nil {
				m.Err = transport.ErrorFromWire(bad)
			}
		}
		e.answered(h, m)
	}
	h.queue = h.queue[len(batch):]
	if len(h.queue) == 0 {
		h.queue = nil
	}
	return retry.IsKind(err, moraine.SessionExpired)
}

// answered removes a file for which the service has answered. The caller holds the mutex.
func (e *exclusive) answered(h *hold, m *Made) {
	c := e.cache
	id, name := m.Attr.Inode, m.op.Name
	delete(e.made, id)
	delete(h.names, name)
	m.from.open--
	c.events.add(h.dir)
	c.events.add(id)
	c.dropAttr(h.dir)
	l := c.leases[h.dir]
	switch {
	case l == nil:
	case m.Err == nil && !h.back && h.session.Id == c.standing.session && e.trusted(h):
		// No other client can have changed it. If the request also ended the
		// exclusive lease, another client may have changed it, and the recall may
		// have arrived before this answer.
		l.know(c, name, id)
	default:
		c.dropEntry(l, name)
	}
	if m.Err != nil {
		m.Err = m.lost(m.Err)
		c.metrics.LocalCreatesLost.Inc()
		e.meta.Log.Warn("a file created under an exclusive lease is lost", "name", name,
			"directory", moraine.InodeID(h.dir), "err", m.Err)
	}
	close(m.done)
}

// lost returns the error of a lost file for the program that has it open. If
// the service refused it as it refuses any file, the error stays. If the
// service could no longer know the file, the error is IOError. The same holds
// for its first content if devices with it went out meanwhile. The client does
// not resubmit it, because the file does not exist either.
func (m *Made) lost(err error) error {
	switch kind := moraine.KindOf(err); {
	case kind == moraine.Exists:
		err = fmt.Errorf("another client created a file of that name while this client was unreachable: %w", err)
	case kind == moraine.Stale && m.commit != nil:
		return &moraine.Error{Op: "create", Kind: moraine.IOError, Err: fmt.Errorf(
			"the file was not created and its first content is lost: the commit was refused (%v). Write it again", err)}
	case kind == moraine.SessionExpired, kind == moraine.Stale:
		err = fmt.Errorf("%w: %w", ErrPutLost, err)
	default:
		return err
	}
	return &moraine.Error{Op: "create", Kind: moraine.IOError, Err: errors.Join(err)}
}

// SendMade sends all local files of a directory to the service, and returns the outcome of the
// last.
func (m *Conn) SendMade(ctx context.Context, dir moraine.InodeID) error {
	e := m.Exclusive
	if e == nil {
		return nil
	}
	e.cache.mu.Lock()
	var last *Made
	if h := e.holds[uint64(dir)]; h != nil && len(h.queue) > 0 {
		last = h.queue[len(h.queue)-1]
	}
	e.cache.mu.Unlock()
	return e.Settle(ctx, last)
}

// clear sends, before a request, the local files that it could concern, and waits for the
// answer. The outcome of those files is reported elsewhere; clear fails only if ctx ends.
func (e *exclusive) clear(ctx context.Context, req *wire.MetaRequest) error {
	if e == nil {
		return nil
	}
	e.cache.mu.Lock()
	if len(e.holds) == 0 {
		e.cache.mu.Unlock()
		return nil
	}
	e.letGo(req)
	var wait []*Made
	last := func(h *hold) {
		if h == nil || len(h.queue) == 0 {
			return
		}
		m := h.queue[len(h.queue)-1]
		e.want(m)
		wait = append(wait, m)
	}
	met := meets(req)
	for _, h := range e.holds {
		if met.all || slices.Contains(met.inodes, h.dir) || slices.Contains(met.children, h.parent) {
			last(h)
		}
	}
	for _, inode := range met.inodes {
		if m := e.made[inode]; m != nil {
			e.want(m)
			wait = append(wait, m)
		}
	}
	e.cache.mu.Unlock()
	for _, m := range wait {
		if err := m.wait(ctx); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// letGo returns the leases of directories that a request may move or remove. No
// file can be created in a directory that is gone or was replaced. The caller
// holds the mutex.
func (e *exclusive) letGo(req *wire.MetaRequest) {
	var of []uint64
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Rename:
		of = transport.Named(req)
	case *wire.MetaRequest_Remove:
		if !op.Remove.GetDirectory() {
			return
		}
		of = transport.Named(req)
	case *wire.MetaRequest_RemoveTree:
		for _, h := range e.holds {
			e.giveBack(h)
		}
	}
	for _, h := range e.holds {
		if slices.Contains(of, h.parent) {
			e.giveBack(h)
		}
	}
}

// met is what a request reads or changes.
type met struct {
	inodes   []uint64 // inodes; for directories also their entries
	children []uint64 // directories of which the request names an entry, and may see the entry's attributes
	all      bool     // unknown: it may concern anything
}

func meets(req *wire.MetaRequest) met {
	of := func(inode uint64) met { return met{inodes: []uint64{inode}} }
	entry := func(dir uint64) met { return met{inodes: []uint64{dir}, children: []uint64{dir}} }
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Create, *wire.MetaRequest_SetAttr, *wire.MetaRequest_SetXattr, *wire.MetaRequest_Commit, *wire.MetaRequest_Link:
		return met{inodes: transport.Named(req)}
	case *wire.MetaRequest_Remove, *wire.MetaRequest_Rename:
		return met{inodes: transport.Named(req), children: transport.Named(req)}
	case *wire.MetaRequest_GetAttr:
		return of(op.GetAttr.GetInode())
	case *wire.MetaRequest_GetXattr:
		return of(op.GetXattr.GetInode())
	case *wire.MetaRequest_GetExtents:
		return of(op.GetExtents.GetInode())
	case *wire.MetaRequest_ReadDir:
		return entry(op.ReadDir.GetInode())
	case *wire.MetaRequest_Lookup:
		return entry(op.Lookup.GetParent())
	case *wire.MetaRequest_Walk:
		if from := op.Walk.GetFrom(); from != 0 && isName(op.Walk.GetPath()) && !op.Walk.GetFollow() {
			return entry(from)
		}
	case *wire.MetaRequest_Grant, *wire.MetaRequest_GetUsage, *wire.MetaRequest_Hold: // of a directory, and not of its entries
		return met{}
	}
	o := ops.Of(req)
	return met{all: o == nil || o.Scope == wire.Operation_TREE}
}
