package client

import (
	"slices"
	"strings"
	"sync"

	"github.com/morainefs/moraine/transport"
)

// servers remembers which metadata server to ask: the leader, as far as known,
// or else the configured ones in turn. Safe for concurrent use.
type servers struct {
	dialer transport.Dialer
	list   [][]string

	mu     sync.Mutex
	next   int      // index in list of the one to ask where leader is nil
	leader []string // named by a NotLeader answer
	stubs  map[string]transport.Metadata
}

// maxStubs bounds the remembered servers: past it they are forgotten, which
// costs one call of Dialer.Metadata each.
const maxStubs = 64

func newServers(d transport.Dialer, list [][]string) *servers {
	return &servers{dialer: d, list: list, stubs: map[string]transport.Metadata{}}
}

// current returns the server to ask, and its addresses.
func (s *servers) current() (transport.Metadata, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := s.leader
	if addrs == nil {
		addrs = s.list[s.next%len(s.list)]
	}
	key := strings.Join(addrs, ",")
	stub, ok := s.stubs[key]
	if !ok {
		if len(s.stubs) >= maxStubs {
			clear(s.stubs)
		}
		stub = s.dialer.Metadata(addrs)
		s.stubs[key] = stub
	}
	return stub, addrs
}

// failed says that the server at addrs did not serve a request; leader, if not
// empty, is whom it named instead. It reports whether the server to ask next is
// another one. Answers of servers that are no longer current change nothing.
func (s *servers) failed(addrs, leader []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.leader
	if now == nil {
		now = s.list[s.next%len(s.list)]
	}
	if !slices.Equal(now, addrs) {
		return true
	}
	if len(leader) > 0 && !slices.Equal(leader, addrs) {
		s.leader = leader
		return true
	}
	s.leader = nil
	s.next++
	return len(s.list) > 1
}
