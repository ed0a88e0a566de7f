package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

type noDialer struct{ transport.Dialer }

func (noDialer) Metadata([]string) transport.Metadata { return nil }

// A client uses the servers that the leader names, and those of its settings only after them.
func TestServersAreLearned(t *testing.T) {
	s := newServers(noDialer{}, [][]string{{"a:1"}, {"b:1"}})
	at := func() string { _, addrs := s.current(); return addrs[0] }
	require.Equal(t, "a:1", at())
	s.failed([]string{"a:1"}, nil)
	require.Equal(t, "b:1", at())
	named := []*wire.MemberAddress{{Id: "m2", Addresses: []string{"b:1"}}, {Id: "m3", Addresses: []string{"c:1"}}, {Id: "m4", Addresses: []string{"d:1"}}}
	s.learn(named)
	require.Equal(t, "b:1", at(), "who answered stays the one to ask")
	var asked []string
	for range 5 {
		asked = append(asked, at())
		s.failed([]string{at()}, nil)
	}
	require.Equal(t, []string{"b:1", "c:1", "d:1", "a:1", "b:1"}, asked)
	s.learn(nil)
	require.Len(t, s.list, 4, "an empty list changes nothing")
}
