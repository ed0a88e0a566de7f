package client

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// File is a new file that a program writes from its first byte to its last. It is invisible
// until Commit gives it its name, whole. Write, WriteStable, ReadFrom, Flush, Commit and Abort
// must not overlap. Every creator of a File must end it with Commit or Abort.
//
// A failure is final: every later call returns it, and only Abort remains. SessionExpired means
// that the client could not reach the service for longer than a session lasts, and its
// uncommitted stripes are lost. The program then writes the file again.
type File struct {
	c       *Client
	sender  stripeio.Sender
	ref     string                                             // path, or inode, for errors
	node    *wire.NewFile                                      // what it is to be
	attr    *wire.Attr                                         // as made; nil: not yet
	link    *wire.LinkTarget                                   // the name it will get; nil: none
	parents func(ctx context.Context) (moraine.InodeID, error) // CreateOptions.Parents
	session *session.Session
	inode   atomic.Uint64 // of attr: Inode reads it while the file is being made
	// life ends when the file fails or ends, with the reason as its cause. The file's background
	// work runs under it, and so do Write and ReadFrom, whose signatures from package io have no
	// context.
	life context.Context
	end  context.CancelCauseFunc

	slots   chan struct{} // one element for each stripe that is being sent
	room    room
	sending sync.WaitGroup
	log     commitLog

	mu     sync.Mutex       // guards the fields below; held across waits for memory and slots
	cur    *stripeio.Stripe // being filled; nil: none
	ticket *stripeio.Ticket // of cur, once it is longer than a small remainder
	limit  int64            // upper bound of cur's length, if it has a ticket
	size   int64            // bytes written so far
	gives  uint64           // size of the file that now has the name, if a quota matters
	seq    int              // of the next stripe to be sent
	ended  bool
}

// Inode returns the file's number; 0 while the file is not made. CreateUnlinked makes it, and so does
// Create's first stripe or commit, which returns the number.
func (f *File) Inode() moraine.InodeID { return moraine.InodeID(f.inode.Load()) }

// Size returns how many bytes were written so far.
func (f *File) Size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.size
}

// Write appends p. It returns after it has copied p. It waits while the client is sending
// Config.StripesInFlight stripes of the file, or its memory is used up.
func (f *File) Write(p []byte) (int, error) { return f.append(p, false) }

// WriteStable appends p without a copy: the caller must not change p until Flush, Commit or
// Abort has returned. It still copies short slices.
func (f *File) WriteStable(p []byte) (int, error) { return f.append(p, len(p) >= minLent) }

// minLent is the minimum number of bytes for which borrowing is cheaper than copying.
const minLent = 64 << 10

// ReadFrom appends all bytes of r.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	// Not from the client's pool: ReadFrom keeps it while Write waits for a pool buffer.
	buf := make([]byte, 4*minLent)
	var total int64
	for {
		n, rerr := r.Read(buf)
		m, err := f.Write(buf[:n])
		total += int64(m)
		switch {
		case err != nil:
			return total, err
		case rerr == io.EOF:
			return total, nil
		case rerr != nil:
			return total, rerr
		}
	}
}

func (f *File) append(p []byte, lent bool) (int, error) {
	f.mu.Lock()
	n := 0
	err := f.mayGrow(int64(len(p)))
	for n < len(p) && err == nil {
		var took int
		if err = f.broken(); err == nil {
			took, err = f.step(p[n:], lent)
			n += took
			f.size += int64(took)
		}
	}
	f.mu.Unlock()
	if f.c.io.Writes.Wanted() {
		f.yield()
	}
	return n, f.fail("client.Write", err)
}

// mayGrow checks the file's size with n bytes more against the quotas of its future directory.
// The caller holds the mutex.
func (f *File) mayGrow(n int64) error {
	if f.link == nil || f.life.Err() != nil {
		return nil
	}
	dir := moraine.InodeID(f.link.Parent)
	err := f.room.admit(f.life, f.c, dir, f.gives, f.size+n-int64(f.gives))
	if !f.link.Replace || moraine.KindOf(err) != moraine.QuotaExceeded {
		return err
	}
	// The commit replaces the file that now has the name, so its bytes count as room. That
	// matters only if the other room is too small.
	there, bad := f.c.Inodes().Lookup(f.life, dir, f.link.Name)
	if bad != nil && moraine.KindOf(bad) != moraine.NotFound {
		return nil // the commit will report it
	}
	size := uint64(there.Size()) // 0 if nothing has the name
	if size == f.gives {
		return err
	}
	f.gives = size
	return f.room.admit(f.life, f.c, dir, f.gives, f.size+n-int64(f.gives))
}

// broken returns why the file accepts no bytes.
func (f *File) broken() error {
	switch {
	case f.ended:
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: errEnded}
	case f.life.Err() != nil:
		return context.Cause(f.life)
	case f.session != f.c.meta.Current():
		return &moraine.Error{Kind: moraine.SessionExpired}
	}
	return nil
}

// step takes the next bytes of p into the stripe, or first does one thing that must come
// before, such as sending a full stripe. The caller holds the mutex.
func (f *File) step(p []byte, lent bool) (int, error) {
	if f.cur == nil {
		f.cur = &stripeio.Stripe{}
	}
	s := f.cur
	limit := f.c.io.SmallBytes()
	if f.ticket == nil && s.Length+int64(len(p)) > limit {
		return 0, f.takeTicket()
	}
	if f.ticket != nil {
		limit = f.limit
	}
	if s.Length >= limit {
		return 0, f.launch()
	}
	if !lent && s.Length == 0 && f.ticket != nil && int64(len(p)) >= limit {
		return f.takeWhole(p[:limit])
	}
	if lent {
		n := min(int64(len(p)), limit-s.Length)
		if ok, err := f.reserve(f.ticket.Parity(n)); !ok {
			return 0, err
		}
		s.Lend(p[:n])
		return int(n), nil
	}
	if n := s.Fill(p, limit); n > 0 {
		return n, nil
	}
	return 0, f.grow(limit)
}

// grow adds a buffer to the stripe.
func (f *File) grow(limit int64) error {
	n := min(f.cur.NextSegment(f.c.cfg.ChunkBytes), limit-f.cur.Length)
	if ok, err := f.reserve(n + f.ticket.Parity(n)); !ok {
		return err
	}
	buf, err := f.c.io.Pool.Get(f.life, int(n))
	if err != nil {
		return err
	}
	f.cur.AddBuffer(buf)
	return nil
}

// takeTicket gets a stripe number for a large stripe. The ticket's scheme bounds its length.
func (f *File) takeTicket() error {
	if err := f.need(); err != nil {
		return err
	}
	t, err := f.c.io.Grants.Take(f.life, f.sender.Key, f.Inode())
	if err != nil {
		return err
	}
	f.ticket = t
	f.limit = int64(t.Scheme.K) * f.c.io.ChunkBytes(t.Scheme)
	// Chunks are rounded up to whole blocks, and so is their parity.
	if ok, err := f.reserve(f.ticket.Parity(f.cur.Length) + int64(t.Scheme.M)*moraine.BlockSize); !ok {
		return err
	}
	return nil
}

// reserve takes n bytes of the budget for the stripe. If the budget lacks them, it sends the
// stripe as it is, so that no writer waits while it has an idle one. It then returns false with
// no error. The caller holds the mutex.
func (f *File) reserve(n int64) (bool, error) {
	w := f.c.io.Writes
	if !w.Try(n) {
		if f.cur.Length > 0 {
			f.c.metrics.StripesCutShort.Inc()
			return false, f.launch()
		}
		if f.cur.Charged > 0 {
			w.Release(f.cur.Charged) // keep nothing while waiting
			n += f.cur.Charged
			f.cur.Charged = 0
		}
		if err := w.Acquire(f.life, n); err != nil {
			return false, err
		}
	}
	f.cur.Charged += n
	return true, nil
}

// takeWhole makes a full stripe of p at once. It copies, checksums and encodes each column
// while the column is in the CPU cache.
func (f *File) takeWhole(p []byte) (int, error) {
	n := int64(len(p))
	if ok, err := f.reserve(n + f.ticket.Parity(n)); !ok {
		return 0, err
	}
	if err := f.cur.TakeWhole(f.life, f.c.io, f.ticket.Scheme, p); err != nil {
		return 0, err
	}
	return int(n), f.launch()
}

// launch waits for a slot and sends the stripe being filled in the background. The caller holds
// the mutex. From here on the sender owns the stripe.
func (f *File) launch() error {
	st, t := f.cur, f.ticket
	f.cur, f.ticket = nil, nil
	if st == nil || st.Length == 0 {
		f.drop(st, t)
		return nil
	}
	err := f.need()
	if err == nil {
		err = f.c.io.Limits.Stripes.Enter(f.life, f.slots)
	}
	if err != nil {
		f.drop(st, t)
		if f.life.Err() != nil {
			return context.Cause(f.life)
		}
		return err
	}
	seq := f.seq
	f.seq++
	f.sending.Go(func() {
		defer func() { <-f.slots }()
		ctx, cancel := context.WithTimeout(f.life, f.c.cfg.Patience)
		defer cancel()
		sent, err := f.sender.Send(ctx, st, t)
		f.drop(st, nil)
		if err == nil {
			err = f.log.add(f, seq, sent)
		}
		f.fail("client.Write", err)
	})
	return nil
}

// drop releases the memory of a stripe, and its ticket if it has one.
func (f *File) drop(st *stripeio.Stripe, t *stripeio.Ticket) {
	if st != nil {
		st.Free()
		f.c.io.Writes.Release(st.Charged)
		st.Charged = 0
	}
	if t != nil {
		f.c.io.Grants.Settle(t, false)
	}
}

// yield sends the stripe being filled, unless another call holds the mutex: another writer
// waits for memory.
func (f *File) yield() {
	if !f.mu.TryLock() {
		return // the holder of the mutex checks budget.wanted after it unlocks
	}
	defer f.mu.Unlock()
	if f.cur == nil || f.ended || len(f.slots) == cap(f.slots) {
		return // stripes being sent will release their memory
	}
	if f.cur.Length > 0 {
		f.c.metrics.StripesCutShort.Inc()
	}
	f.fail("client.Write", f.launch())
}

// filling makes a File a stripeio.Filler, which the budget of writes can ask for memory.
type filling struct{ f *File }

// Yield implements stripeio.Filler.
func (w filling) Yield() { w.f.yield() }

// fail ends the file with err, unless it is nil, and returns the error for the caller.
func (f *File) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	if retry.IsKind(err, moraine.NotFound) && f.session != f.c.meta.Current() {
		// The file had no name and ended with its session, so the next session does not find it.
		err = &moraine.Error{Kind: moraine.SessionExpired, Err: err}
	}
	err = f.wrap(op, err)
	f.end(err)
	return err
}

func (f *File) wrap(op string, err error) error { return retry.Wrap(op, f.ref, err) }
