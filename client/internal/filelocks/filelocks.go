// Package filelocks has the advisory locks of a client's files: it takes them from the service, waits
// for them, gives them back, and knows which were lost with a session.
//
// One path through it: Lock takes the turn of the owner and sends a command. If another owner has the
// lock, it waits at the leader (AwaitLock) without the turn, and sends the command again. The
// commands run to their end also if the caller leaves: a lock that arrives then is given back
// (undo.go). So no lock stays without an owner that knows of it.
//
// The service drops a session's locks when the session ends. The Book keeps them, with their
// session: Lost reports them until their owner unlocks, so that no write goes on as if it were
// protected.
package filelocks

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/transport/wire"
)

// ErrDeadlock is the cause of the error of a lock that would wait for ever.
var ErrDeadlock = errors.New("the holder of the lock waits, through others, for a lock of this owner")

// ErrLost is the cause of the error of a call that a lost lock no longer protects.
var ErrLost = errors.New("the session ended, and with it a lock on the file: unlock or close it")

// errHeld is the cause of the error of a lock that another owner has.
var errHeld = errors.New("another owner has a lock on the range")

// waitMillis is how long one request waits for a lock at the leader.
const waitMillis = 10_000

// Lock is a lock of this client.
type Lock struct {
	Owner      uint64 // a number of this client's choice
	Flock      bool   // flock and fcntl ignore each other's locks
	Start, End uint64 // End is after the last byte; locktable.Max: the end of every file
	Write      bool
	PID        uint32
}

// who is an owner.
type who struct {
	inode moraine.InodeID
	id    uint64
	flock bool
}

// place is a call's place in the line of its owner: it is closed when the call's turn comes.
type place chan struct{}

// Book has the locks of a client. Safe for concurrent use.
type Book struct {
	meta  *session.Conn
	log   *slog.Logger
	life  context.Context
	work  sync.WaitGroup // commands that run
	turns limit.Resource

	locked atomic.Int64 // inodes in tables

	mu     sync.Mutex // guards the following fields
	closed bool
	tables map[moraine.InodeID]locktable.Table
	lines  map[who][]place // the first place has the turn
}

// NewBook returns an empty Book. turns is what the calls of one owner wait for: the command of the
// one before. Start must come before any other call.
func NewBook(meta *session.Conn, log *slog.Logger, turns limit.Resource) *Book {
	return &Book{meta: meta, log: log, turns: turns, tables: map[moraine.InodeID]locktable.Table{}, lines: map[who][]place{}}
}

// Start lets commands run until life ends.
func (b *Book) Start(life context.Context) { b.life = life }

// Close waits for the commands that run. life must have ended. The end of the session then drops the
// locks.
func (b *Book) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.work.Wait()
}

// Lock takes a lock in place of what the owner has in the range. Busy: another owner has it, and
// wait is false. Conflict with ErrDeadlock: the wait would never end. IOError with ErrLost: the
// owner lost a lock on the file, and must unlock first. QuotaExceeded: the file or the client has
// too many. After any error the owner has what it had before; only a flock that waited has nothing.
func (b *Book) Lock(ctx context.Context, inode moraine.InodeID, l Lock, wait bool) error {
	for {
		held, err := b.try(ctx, inode, l)
		switch {
		case err != nil || !held:
			return err
		case !wait:
			return &moraine.Error{Op: "lock", Ref: inode.String(), Kind: moraine.Busy, Err: errHeld}
		}
		// As on a local file system, flock gives back what it converts before it waits. Otherwise two
		// readers that both want to write would wait for each other.
		if l.Flock {
			if err := b.Unlock(ctx, inode, l); err != nil {
				return err
			}
		}
		if err := b.await(ctx, inode, l); err != nil {
			return err
		}
	}
}

// try sends one command, and reports whether another owner has the lock.
func (b *Book) try(ctx context.Context, inode moraine.InodeID, l Lock) (held bool, err error) {
	w := who{inode, l.Owner, l.Flock}
	p, err := b.enter(ctx, w)
	if err != nil {
		return false, err
	}
	if b.lost(inode, func(h locktable.Lock) bool { return h.ID == l.Owner && h.Flock == l.Flock }) {
		b.leave(w, p)
		return false, b.LostError(inode)
	}
	call := &attempt{ended: make(chan struct{})}
	if !b.run(func() {
		defer b.leave(w, p)
		b.command(inode, l, call)
	}) {
		b.leave(w, p)
		return false, session.ErrClosed
	}
	select {
	case <-call.ended:
	case <-ctx.Done():
		if call.abandon() {
			return false, retry.ContextError(ctx, "lock")
		}
		<-call.ended
	}
	return call.held, call.err
}

// command asks the service for a lock, under the session that is current then.
func (b *Book) command(inode moraine.InodeID, l Lock, call *attempt) {
	var s *session.Session
	var resp *wire.MetaResponse
	var err error
	for range session.MaxSessions {
		s = b.meta.Current()
		resp, err = b.meta.DoUnder(b.life, b.request(inode, l, false), s)
		if !retry.IsKind(err, moraine.SessionExpired) {
			break // what an ended session got is gone
		}
	}
	if err == nil && resp.GetLock() == nil {
		err = retry.BadReply("lock")
	}
	held := resp.GetLock().GetConflict() != nil
	granted := err == nil && !held
	taken := call.finish(held, err, func() {
		if granted {
			b.set(inode, own(s.Id, l))
		}
	})
	if granted && !taken || err != nil && !refused(err) {
		b.undo(s, inode, l)
	}
}

// refused reports whether the service has surely done nothing.
func refused(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.PermissionDenied, moraine.ReadOnly:
		return true
	}
	return vain(err)
}

// vain reports whether the service would refuse the same request again.
func vain(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.SessionExpired, moraine.NotFound, moraine.QuotaExceeded, moraine.InvalidArgument:
		return true
	}
	return false
}

// await waits until no lock of others prevents l.
func (b *Book) await(ctx context.Context, inode moraine.InodeID, l Lock) error {
	for {
		resp, err := b.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_AwaitLock{AwaitLock: &wire.AwaitLock{Inode: uint64(inode), Lock: l.wire(), WaitMillis: waitMillis}}})
		switch r := resp.GetLock(); {
		case err != nil:
			return err
		case r == nil:
			return retry.BadReply("await lock")
		case r.Deadlock:
			return &moraine.Error{Op: "lock", Ref: inode.String(), Kind: moraine.Conflict, Err: ErrDeadlock}
		case r.Conflict == nil:
			return nil
		}
		if b.lost(inode, func(h locktable.Lock) bool { return h.ID == l.Owner && h.Flock == l.Flock }) {
			return b.LostError(inode)
		}
	}
}

// Unlock takes the owner's locks in the range away, also those that were lost. It returns when that
// is done. If ctx ends first, or the service does not answer, it goes on in the background: a later
// Lock of the owner comes after it. QuotaExceeded: the rest would be too many locks, and nothing changes.
func (b *Book) Unlock(ctx context.Context, inode moraine.InodeID, l Lock) error {
	w := who{inode, l.Owner, l.Flock}
	if !b.concerns(w) {
		return nil
	}
	result := make(chan error, 1)
	if !b.runInTurn(w, func(ended error) {
		if ended != nil {
			result <- ended
			return
		}
		b.giveBack(inode, l, result)
	}) {
		return nil
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return retry.ContextError(ctx, "unlock")
	}
}

// giveBack is Unlock for a caller that has the owner's turn. It may continue after it has sent the
// result.
func (b *Book) giveBack(inode moraine.InodeID, l Lock, result chan<- error) {
	s, req := b.meta.Current(), b.request(inode, l, true)
	var err error
	if b.holds(inode, own(s.Id, l)) {
		_, err = b.meta.DoUnder(b.life, req, s)
	}
	switch {
	case retry.IsKind(err, moraine.QuotaExceeded):
		result <- err
		return
	case err == nil, retry.IsKind(err, moraine.SessionExpired):
		b.clear(inode, l)
		result <- nil
		return
	}
	b.clear(inode, l)
	result <- err
	b.must(s, req)
}

// Find returns a lock of another owner that would prevent l, and whether its owner is of this
// client.
func (b *Book) Find(ctx context.Context, inode moraine.InodeID, l Lock) (by Lock, own, ok bool, err error) {
	w, s := l.wire(), b.meta.Current()
	w.Session = s.Id
	resp, err := b.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetLock{GetLock: &wire.GetLock{Inode: uint64(inode), Lock: w}}})
	if err == nil && resp.GetLock() == nil {
		err = retry.BadReply("get lock")
	}
	c := resp.GetLock().GetConflict()
	if err != nil || c == nil {
		return Lock{}, false, false, err
	}
	return Lock{Owner: c.Owner, Flock: c.Flock, Start: c.Start, End: c.End, Write: c.Write, PID: c.Pid}, c.Session == s.Id, true, nil
}

// request is the command that takes or gives back a lock.
func (b *Book) request(inode moraine.InodeID, l Lock, unlock bool) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_SetLock{SetLock: &wire.SetLock{Inode: uint64(inode), Lock: l.wire(), Unlock: unlock}}}
}

func (l Lock) wire() *wire.FileLock {
	return &wire.FileLock{Owner: l.Owner, Flock: l.Flock, Start: l.Start, End: l.End, Write: l.Write, Pid: l.PID}
}

// own is a lock under a session.
func own(session uint64, l Lock) locktable.Lock {
	return locktable.Lock{Owner: locktable.Owner{Session: session, Flock: l.Flock, ID: l.Owner}, Start: l.Start, End: l.End, Write: l.Write, PID: l.PID}
}
