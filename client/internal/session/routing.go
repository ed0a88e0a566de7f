package session

import (
	"context"

	"github.com/morainefs/moraine"
)

// maxReroutes bounds how often one request gets a new routing without a pause.
const maxReroutes = 3

// sawRouting records the routing epoch from a session's opening or renewal. It only rises; 0 is
// from a service that has none.
func (s *Session) sawRouting(epoch uint64) {
	for {
		have := s.routing.Load()
		if have >= epoch || s.routing.CompareAndSwap(have, epoch) {
			return
		}
	}
}

// reroute requests the current routing after the service refused a request with an outdated
// one, without executing it. It returns nil if the request may be repeated.
func (m *Conn) reroute(ctx context.Context, s *Session) error {
	if s == nil {
		return &moraine.Error{Op: "route", Kind: moraine.Misrouted}
	}
	resp, _, err := m.exchange(ctx, m.renewal(s, false), s, 0)
	if err != nil {
		return err
	}
	m.takeRevoked(resp.GetSession())
	s.sawRouting(resp.GetSession().GetRoutingEpoch())
	return nil
}
