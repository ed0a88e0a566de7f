package session

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// servers remembers which metadata server to use: the leader, if known, or else the known
// servers in turn. Safe for concurrent use.
//
// The configured servers are for the start. The leader names all current servers in its answers
// to sessions. So one configured server that is up is enough, and an outdated list does no harm
// once that server has answered. The client uses the configured ones again only after all that
// the leader has named have failed.
type servers struct {
	dialer     transport.Dialer
	configured [][]string

	mu     sync.Mutex
	list   [][]string // as the leader last named them, then other configured ones
	next   int        // index in list of the server to use if leader is nil
	leader []string   // from a NotLeader answer
	stubs  map[string]transport.Metadata
}

// maxStubs bounds the remembered stubs. Past it the client drops them, and
// gets each back with one call of Dialer.Metadata.
const maxStubs = 64

func newServers(d transport.Dialer, list [][]string) *servers {
	return &servers{dialer: d, configured: list, list: list, stubs: map[string]transport.Metadata{}}
}

// current returns the server to use, and its addresses.
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

// others returns the addresses of all known servers but the one at addrs.
func (s *servers) others(addrs []string) [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.list), func(a []string) bool { return slices.Equal(a, addrs) })
}

// learn takes over the leader's list of metadata servers, unless it is empty.
func (s *servers) learn(named []*wire.MemberAddress) {
	if len(named) == 0 {
		return
	}
	var list [][]string
	for _, m := range named {
		if len(m.GetAddresses()) > 0 {
			list = append(list, m.Addresses)
		}
	}
	for _, addrs := range s.configured {
		if !slices.ContainsFunc(list, func(have []string) bool { return slices.Equal(have, addrs) }) {
			list = append(list, addrs)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.EqualFunc(s.list, list, slices.Equal[[]string]) {
		return
	}
	if s.leader == nil { // keep using the server that answered
		s.leader = s.list[s.next%len(s.list)]
	}
	s.list, s.next = list, 0
}

// failedWith is failed with the error of the server or the network. A server that does not lead
// names the leader in it, if known.
func (s *servers) failedWith(addrs []string, err error) (leader []string, another bool) {
	var hint *transport.LeaderHint
	if errors.As(err, &hint) {
		leader = hint.Addresses
	}
	return leader, s.failed(addrs, leader)
}

// failed records that the server at addrs did not serve a request; leader, if not empty, is the
// one it named instead. It reports whether the next server to use is another one. Answers of
// servers that are no longer current change nothing.
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
