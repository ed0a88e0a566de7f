package transport

import (
	"fmt"
	"sync"

	"github.com/morainefs/moraine"
)

// shareOfMost is the part of a limit that the holders of one certificate may use: a half. Many
// hosts may have one certificate, so the part is large; the other half stays free for others.
const shareOfMost = 2

// principal names the certificate of a peer, as Peer.Principal does.
type principal [principalLen]byte

func principalOf(p *Peer) principal { return principal(p.Principal()) }

// shares counts the connections of each certificate that has any. Safe for concurrent use.
type shares struct {
	most int // of one certificate

	mu   sync.Mutex // guards used
	used map[principal]int
}

func newShares(most int) *shares { return &shares{most: max(1, most), used: map[principal]int{}} }

// take counts a connection of p, or reports that its certificate has as many as it may have.
func (s *shares) take(p principal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[p] >= s.most {
		return false
	}
	s.used[p]++
	return true
}

// leave ends a connection of p.
func (s *shares) leave(p principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[p]--; s.used[p] <= 0 {
		delete(s.used, p)
	}
}

// takeShare counts a connection of a peer that has proved its identity. The caller must call
// leave once the connection has ended.
func (s *Server) takeShare(peer *Peer) (leave func(), err error) {
	p := principalOf(peer)
	if s.shares.take(p) {
		return func() { s.shares.leave(p) }, nil
	}
	return nil, &moraine.Error{Op: "transport.hello", Ref: peer.Node, Kind: moraine.Unavailable,
		Err: fmt.Errorf("the certificate of %s %s has %d connections to %s, its limit: close programs that nobody needs, or give each host its own certificate",
			peer.Role, peer.Node, s.shares.most, s.cfg.Node)}
}
