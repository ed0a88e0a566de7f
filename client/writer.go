package client

import (
	"context"
	"io"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// File is a new file being written from its first byte to its last. Nobody sees
// it until Commit gives it its name, whole. Write, WriteStable, ReadFrom, Flush,
// Commit and Abort must not overlap; everybody who creates a File ends it with
// Commit or Abort.
//
// A failure is final: every later call returns it, and Abort is all that is
// left to do. SessionExpired means that the client was cut off from the service
// for longer than a session lasts, so that what was put is gone: write the file
// again.
type File struct {
	c       *Client
	sender  stripeio.Sender
	ref     string                                             // path, or inode, for errors
	attr    *wire.Attr                                         // as created
	link    *wire.LinkTarget                                   // the name it is to get; nil: none
	parents func(ctx context.Context) (moraine.InodeID, error) // CreateOptions.Parents
	session *session.Session
	// life ends when the file fails or ends, with the reason as its cause. The
	// file's background work runs under it, and so do Write and ReadFrom, which
	// have the signatures of package io and thus no context of their own.
	life context.Context
	end  context.CancelCauseFunc

	slots   chan struct{} // one element for each stripe being sent
	room    room
	sending sync.WaitGroup
	log     commitLog

	mu     sync.Mutex       // guards what follows; held across waits for memory and slots
	cur    *stripeio.Stripe // being filled; nil: none
	ticket *stripeio.Ticket // of cur, once it is past the size of a small remainder
	limit  int64            // of cur's length, where it has a ticket
	size   int64            // bytes taken in all
	gives  uint64           // size of the file that its name has, as far as it matters to a quota
	seq    int              // of the next stripe to be sent
	ended  bool
}

// Inode returns the file's number.
func (f *File) Inode() moraine.InodeID { return f.sender.Inode }

// Size returns how many bytes were written so far.
func (f *File) Size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.size
}

// Write appends p. It returns when p was copied, and waits while the file has
// Config.StripesInFlight stripes on their way or the client's memory is used up.
func (f *File) Write(p []byte) (int, error) { return f.append(p, false) }

// WriteStable appends p without a copy: p must not change until Flush, Commit or
// Abort has returned. Short slices are copied all the same.
func (f *File) WriteStable(p []byte) (int, error) { return f.append(p, len(p) >= minLent) }

// minLent is the least number of bytes worth borrowing rather than copying.
const minLent = 64 << 10

// ReadFrom appends all that r gives.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	// No buffer of the client's: it is held while Write waits for one.
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

// mayGrow holds the file's size with n bytes more against the quotas of where it
// is to get its name. The mutex is held.
func (f *File) mayGrow(n int64) error {
	if f.link == nil || f.life.Err() != nil {
		return nil
	}
	dir := moraine.InodeID(f.link.Parent)
	err := f.room.admit(f.life, f.c, dir, f.gives, f.size+n-int64(f.gives))
	if !f.link.Replace || moraine.KindOf(err) != moraine.QuotaExceeded {
		return err
	}
	// What has the name goes in the entry that gives it to this file, so that its
	// bytes are room then. That matters only here, where the rest does not do.
	there, bad := f.c.Inodes().Lookup(f.life, dir, f.link.Name)
	if bad != nil && moraine.KindOf(bad) != moraine.NotFound {
		return nil // the commit will tell
	}
	if there.GetSize() == f.gives {
		return err
	}
	f.gives = there.GetSize()
	return f.room.admit(f.life, f.c, dir, f.gives, f.size+n-int64(f.gives))
}

// broken returns why the file takes no more bytes.
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

// step takes the next bytes of p into the stripe, or does one thing that has to
// be done first, such as to send a stripe that is full. The mutex is held.
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
		if ok, err := f.reserve(f.share(n)); !ok {
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

// grow gives the stripe another buffer.
func (f *File) grow(limit int64) error {
	n := min(f.cur.NextSegment(f.c.cfg.ChunkBytes), limit-f.cur.Length)
	if ok, err := f.reserve(n + f.share(n)); !ok {
		return err
	}
	buf, err := f.c.io.Pool.Get(f.life, int(n))
	if err != nil {
		return err
	}
	f.cur.AddBuffer(buf)
	return nil
}

// share returns how much parity n bytes of the stripe come to.
func (f *File) share(n int64) int64 {
	if f.ticket == nil || f.ticket.Scheme.IsCopies() {
		return 0
	}
	k, m := int64(f.ticket.Scheme.K), int64(f.ticket.Scheme.M)
	return (n*m + k - 1) / k
}

// takeTicket gets the stripe its number, now that it is to be a large one: its
// scheme says how long it may become.
func (f *File) takeTicket() error {
	t, err := f.c.io.Grants.Take(f.life, f.sender.Key, f.Inode())
	if err != nil {
		return err
	}
	f.ticket = t
	f.limit = int64(t.Scheme.K) * f.c.io.ChunkBytes(t.Scheme)
	// Chunks are rounded up to whole blocks, and so is their parity.
	if ok, err := f.reserve(f.share(f.cur.Length) + int64(t.Scheme.M)*moraine.BlockSize); !ok {
		return err
	}
	return nil
}

// reserve takes n bytes of the budget for the stripe. Where they are not there
// the stripe is sent as it is, so that nothing waits while it holds one; false
// with no error says that this happened. The mutex is held.
func (f *File) reserve(n int64) (bool, error) {
	w := f.c.io.Writes
	if !w.Try(n) {
		if f.cur.Length > 0 {
			f.c.metrics.StripesCutShort.Inc()
			return false, f.launch()
		}
		if f.cur.Charged > 0 {
			w.Release(f.cur.Charged) // nothing is held while we wait
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

// TakeWhole makes a full stripe of p at once: each column is copied, summed and
// encoded while it is in cache.
func (f *File) takeWhole(p []byte) (int, error) {
	n := int64(len(p))
	if ok, err := f.reserve(n + f.share(n)); !ok {
		return 0, err
	}
	if err := f.cur.TakeWhole(f.life, f.c.io, f.ticket.Scheme, p); err != nil {
		return 0, err
	}
	return int(n), f.launch()
}

// launch sends the stripe being filled in the background, after a wait for a
// slot. The mutex is held; from here on the stripe is the sender's.
func (f *File) launch() error {
	st, t := f.cur, f.ticket
	f.cur, f.ticket = nil, nil
	if st == nil || st.Length == 0 {
		f.drop(st, t)
		return nil
	}
	if err := stripeio.Enter(f.life, f.slots, &f.c.io.Limits.Stripes); err != nil {
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

// drop gives back what a stripe holds, and its ticket if it has one.
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

// yield sends the stripe being filled, if there is one and nobody is at work
// with it: somebody else waits for memory.
func (f *File) yield() {
	if !f.mu.TryLock() {
		return // whoever has the lock looks at budget.wanted when it lets go
	}
	defer f.mu.Unlock()
	if f.cur == nil || f.ended || len(f.slots) == cap(f.slots) {
		return // what is on its way will give its memory back
	}
	if f.cur.Length > 0 {
		f.c.metrics.StripesCutShort.Inc()
	}
	f.fail("client.Write", f.launch())
}

// filling is a File as the budget of writes asks it for memory.
type filling struct{ f *File }

// Yield implements stripeio.Filler.
func (w filling) Yield() { w.f.yield() }

// fail makes err, if it is one, the end of the file, and returns it as the
// caller is to see it.
func (f *File) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	if retry.IsKind(err, moraine.NotFound) && f.session != f.c.meta.Current() {
		// It has no name, and went with its session: the next one does not find it.
		err = &moraine.Error{Kind: moraine.SessionExpired, Err: err}
	}
	err = f.wrap(op, err)
	f.end(err)
	return err
}

func (f *File) wrap(op string, err error) error { return retry.Wrap(op, f.ref, err) }
