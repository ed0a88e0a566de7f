package metadata

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport"
)

// sessions is the leader's memory of the live sessions. The state has a session's belongings; only
// this memory knows when it was last renewed.
type sessions struct {
	timeout time.Duration
	most    int // largest number of live sessions of one certificate

	mu   sync.Mutex // guards the following fields
	byID map[uint64]*session
	// of and opening count each certificate's sessions: in byID, and being opened.
	of, opening map[record.Principal]int
	refused     time.Time // when a refused session was last logged
	issued      []issued  // numbers of orphans, oldest first
}

// session is one live session. Its identity fields never change.
type session struct {
	// peer is the connection of the session's last request; nil if it has not sent this leader one.
	peer      atomic.Pointer[transport.Peer]
	principal record.Principal // identifies the certificate that opened it
	node      string
	root      uint64 // inode where its paths start
	readOnly  bool
	all       bool // its scope is the root
	tenants   []moraine.Tenant
	renewed   time.Time
	leases    bool // it may have cache leases
	// opens says that it may have files open. Of the orphans up to the number kept, it keeps those
	// that it has open.
	opens  bool
	kept   uint64
	ending bool // it is marked for expiry and can no longer be renewed
}

func newSessions(timeout time.Duration, most int) *sessions {
	return &sessions{timeout: timeout, most: most, byID: make(map[uint64]*session),
		of: make(map[record.Principal]int), opening: make(map[record.Principal]int)}
}

func (s *sessions) add(id uint64, ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.byID[id]; !known {
		s.byID[id] = ses
		s.of[ses.principal]++
	}
}

func (s *sessions) remove(ids []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if ses := s.byID[id]; ses != nil {
			delete(s.byID, id)
			less(s.of, ses.principal)
		}
	}
}

func (s *sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// scopes returns the directories to which live sessions are confined.
func (s *sessions) scopes() map[moraine.InodeID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	roots := make(map[moraine.InodeID]bool)
	for _, ses := range s.byID {
		if !ses.all {
			roots[moraine.InodeID(ses.root)] = true
		}
	}
	return roots
}

// holding returns the sessions that may have cache leases.
func (s *sessions) holding() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uint64
	for id, ses := range s.byID {
		if ses.leases {
			ids = append(ids, id)
		}
	}
	return ids
}

// live returns a session that has not ended.
func (s *sessions) live(id uint64) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.byID[id]
	if ses == nil || ses.ending {
		return nil, sessionExpired(id)
	}
	return ses, nil
}

// renew renews a session for a full term from now. Only a leader that has just proved that it leads
// may call it.
func (s *sessions) renew(id uint64, now time.Time) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.byID[id]
	if ses == nil || ses.ending {
		return nil, sessionExpired(id)
	}
	if now.After(ses.renewed) {
		ses.renewed = now
	}
	return ses, nil
}

// LeasesOf implements leases.Sessions.
func (s *sessions) LeasesOf(id uint64) (confined, may bool, err error) {
	ses, err := s.live(id)
	if err != nil {
		return false, false, err
	}
	return !ses.all, ses.leases, nil
}

// RenewLeases implements leases.Sessions.
func (s *sessions) RenewLeases(id uint64, now time.Time) (confined, may bool, err error) {
	ses, err := s.renew(id, now)
	if err != nil {
		return false, false, err
	}
	return !ses.all, ses.leases, nil
}

// renewAll gives every session a full new term.
func (s *sessions) renewAll(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.byID {
		ses.renewed = now
	}
	s.issued = nil // no session had the time since
}

// overdue returns the sessions whose term has ended and marks them: nothing renews them from then
// on.
func (s *sessions) overdue(now time.Time) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uint64
	for id, ses := range s.byID {
		if ses.ending || now.Sub(ses.renewed) > s.timeout {
			ses.ending = true
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// sessionExpired is the error for a session that is not live, and for another caller's session, so
// that nobody learns which sessions exist.
func sessionExpired(id uint64) error {
	return &moraine.Error{Ref: moraine.SessionID(id).String(), Kind: moraine.SessionExpired,
		Err: fmt.Errorf("the session has ended, or another certificate opened it: open a new one")}
}
