package filelocks

import (
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/wire"
)

// attempt is one command for a lock, and its caller, which may leave before the answer.
type attempt struct {
	ended chan struct{}

	mu   sync.Mutex // guards the following fields
	left bool       // the caller left
	done bool
	held bool
	err  error
}

// abandon says that the caller leaves. It is false if the answer has arrived.
func (a *attempt) abandon() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = !a.done
	return a.left
}

// finish gives the caller the answer, after it has called record. It is false if the caller left.
func (a *attempt) finish(held bool, err error, record func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left {
		return false
	}
	record()
	a.held, a.err, a.done = held, err, true
	close(a.ended)
	return true
}

// undo gives the owner what it had before a command whose lock it does not have: its caller left, or
// the answer was lost. What it had for writing and wanted for reading only, it now has for reading:
// others may have taken the rest. The caller has the owner's turn.
func (b *Book) undo(s *session.Session, inode moraine.InodeID, l Lock) {
	o := own(s.Id, l).Owner
	at := l.Start
	give := func(start, end uint64, unlock, write bool) {
		if start >= end {
			return
		}
		piece := l
		piece.Start, piece.End, piece.Write = start, end, write
		if b.must(s, b.request(inode, piece, unlock)) && !unlock {
			b.set(inode, own(s.Id, piece))
		}
	}
	for _, had := range b.owned(inode, o) {
		if had.End <= l.Start || had.Start >= l.End {
			continue
		}
		start, end := max(had.Start, l.Start), min(had.End, l.End)
		give(at, start, true, false)
		give(start, end, false, had.Write && l.Write)
		at = end
	}
	give(at, l.End, true, false)
}

// retryEvery is the pause between two attempts of a command that must succeed.
const retryEvery = time.Second

// must repeats a command that takes away, until the service has answered or the session has ended.
// It reports whether the service did it.
func (b *Book) must(s *session.Session, req *wire.MetaRequest) bool {
	for {
		_, err := b.meta.DoUnder(b.life, req, s)
		if err == nil {
			return true
		}
		if b.life.Err() != nil || b.meta.Current() != s || vain(err) {
			return false
		}
		b.log.Warn("a file lock is not given back yet; trying again", "inode", moraine.InodeID(req.GetSetLock().GetInode()), "err", err)
		select {
		case <-b.life.Done():
			return false
		case <-b.meta.Clock.After(retryEvery):
		}
	}
}
