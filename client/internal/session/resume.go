package session

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Resume says how the first session of a Conn follows one of a process that has ended. The service
// finds a live session by its nonce. What that session owns, such as unlinked files and locks, then
// outlives the process. Its delegations end.
//
// The process before may have requests on their way. They have lower numbers: the service refuses
// them once it has applied a request of this process.
type Resume struct {
	// Nonce is that of the session. No live session with it: a session is opened with it.
	Nonce [nonceBytes]byte
	// Life counts the processes that use the session in turn, from 1.
	Life uint64
	// Copies are the inodes of which copies may exist that a process before permitted (Keep).
	Copies []moraine.InodeID
	// Opened is called for each session that the client opens, before it is used.
	Opened func(nonce [nonceBytes]byte, id moraine.SessionID)
}

const (
	// numbersPerLife is how many request numbers one process may use in a session.
	numbersPerLife = 1 << 40
	// standingsPerLife is how many standings one process may begin in a session.
	standingsPerLife = 1 << 40
)

// firstNumber returns the first request number of each session.
func (r *Resume) firstNumber() uint64 {
	if r == nil {
		return 1
	}
	return r.Life*numbersPerLife + 1
}

// firstStanding returns the epoch below all standings of this process.
func (r *Resume) firstStanding() uint64 {
	if r == nil {
		return 0
	}
	return r.Life * standingsPerLife
}

func (r *Resume) opened(nonce []byte, id uint64) {
	if r != nil && r.Opened != nil {
		r.Opened([nonceBytes]byte(nonce), moraine.SessionID(id))
	}
}

// openFirst opens the first session, or takes over that of Config.Resume. Another certificate
// cannot take a session over: then the client opens one of its own.
func (m *Conn) openFirst(ctx context.Context) error {
	if m.resume == nil {
		_, err := m.open(ctx, nil)
		return err
	}
	if m.cache != nil {
		m.cache.resume(m.resume)
	}
	if err := m.opening.Acquire(ctx, 1); err != nil {
		return err
	}
	s, err := m.openBy(ctx, m.resume.Nonce[:], nil)
	m.opening.Release(1)
	if retry.IsKind(err, moraine.PermissionDenied) {
		_, err = m.open(ctx, nil)
		return err
	}
	if err == nil && m.resume.Life > 1 {
		err = m.endDelegations(ctx, s)
	}
	return err
}

// endDelegations gives back what is delegated to a session: this process does not know which
// directories, and what was queued there is lost. From here on the service refuses what the process
// before has on its way. Only then may the cache take anything in.
func (m *Conn) endDelegations(ctx context.Context, s *Session) error {
	req := &wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{All: true}}}
	for {
		resp, err := m.under(ctx, req, s)
		if retry.IsKind(err, moraine.SessionExpired) {
			return nil // it has none any more
		}
		if err == nil && resp.GetEndDelegation() == nil {
			err = retry.BadReply("end delegation")
		}
		if err != nil || !resp.GetEndDelegation().GetMore() {
			return err
		}
	}
}

// resume takes over what the process before has given out: copies, which must be dropped before a
// standing begins, and loans, which end by themselves.
func (c *cache) resume(r *Resume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.firstStanding = r.firstStanding()
	c.loans.last = c.clock.Now().Add(loanTime)
	c.copies.lost = append(c.copies.lost, r.Copies...)
	for _, inode := range r.Copies {
		c.copies.losing[inode]++
	}
	c.copies.signal()
}
