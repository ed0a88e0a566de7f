package client

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/filelocks"
	"github.com/morainefs/moraine/client/internal/session"
)

// Resume says how a client follows a client of a process that has ended, such as the daemon of a
// mount that was killed. Its session goes on: unlinked files stay, and so do locks. Its delegated
// directories are given back, and what was queued there is lost. If that session
// has expired, or the certificate is another, the client opens another session. What the old one
// owned is then lost.
type Resume struct {
	// Nonce is the secret by which the service finds the session. Who knows it, and has the same
	// certificate, can take the session over.
	Nonce [16]byte
	// Life counts the processes that follow each other, from 1. It must rise with each.
	Life uint64
	// Copies are the inodes of which a kernel may have pages that a process before lent. The client
	// gets no cache leases before these are dropped.
	Copies []moraine.InodeID
	// Opened is called for each session that the client opens or takes over, before its first use.
	// May be nil.
	Opened func(nonce [16]byte, session moraine.SessionID)
}

func (r *Resume) session() *session.Resume {
	if r == nil {
		return nil
	}
	return &session.Resume{Nonce: r.Nonce, Life: r.Life, Copies: r.Copies, Opened: r.Opened}
}

// Resumed says that the caller has opened again what the process before had open. Until then the
// cluster removes no file that others remove, since it may be open here. A client with Config.Resume
// must call it.
func (n Inodes) Resumed() { n.c.meta.Orphans.Resumed() }

// AdoptLock records a lock that a process before took under a session. If that is not the current
// session the lock is lost, as after the end of a session (see Lock). It sends no request.
func (n Inodes) AdoptLock(inode moraine.InodeID, l FileLock, of moraine.SessionID) {
	n.c.locks.Adopt(inode, filelocks.Lock(l), uint64(of))
}

// Uncommitted reports whether the client has bytes of the file that are not committed yet, or lost
// some without a report.
func (h *Handle) Uncommitted() bool {
	if h.ct.c.meta.Desk.Unsent(uint64(h.Inode())) {
		return true
	}
	h.ct.mu.Lock()
	defer h.ct.mu.Unlock()
	return len(h.ct.spans) > 0 || len(h.ct.open) > 0 || h.ct.faults.unseen
}
