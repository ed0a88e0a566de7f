package session

import (
	"context"

	"github.com/morainefs/moraine"
)

// maxReroutes bounds how often one request is routed anew without a pause.
const maxReroutes = 3

// sawRouting notes the routing epoch that a session's opening or renewal told.
// It only rises; 0 is from a service that has none.
func (s *Session) sawRouting(epoch uint64) {
	for {
		have := s.routing.Load()
		if have >= epoch || s.routing.CompareAndSwap(have, epoch) {
			return
		}
	}
}

// reroute asks for the present routing, after the service has refused a request
// that was routed by another, without having looked at it. It returns whether the
// request may be made again.
func (m *Conn) reroute(ctx context.Context, s *Session) error {
	if s == nil {
		return &moraine.Error{Op: "route", Kind: moraine.Misrouted}
	}
	resp, _, err := m.exchange(ctx, m.renewal(false), s, 0)
	if err != nil {
		return err
	}
	m.takeRevoked(resp.GetSession())
	s.sawRouting(resp.GetSession().GetRoutingEpoch())
	return nil
}
