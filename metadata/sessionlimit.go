package metadata

import (
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	statesession "github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport/wire"
)

// A session costs the leader memory until it ends, a term after its last renewal. The live sessions
// of one certificate are therefore bounded. A client that opens sessions in a loop reaches the
// bound, and neither the leader's memory nor the work of ending sessions grows beyond it.
//
// No session ends early to make room. A client that stalls for less than a term is promised its
// session, and the leader cannot distinguish it from a dead one. Instead the bound is far above a
// host's needs: see DefaultMaxSessions.

// DefaultMaxSessions is the default of Config.MaxSessions. A host with one certificate runs tens of
// processes. If its 256 ranks are killed and restarted each second, they have 15,360 sessions after
// a term of 60 s, when the first ones expire. One certificate on all of 2,000 hosts with 8 ranks
// each allows three restarts of the whole job in a term.
const DefaultMaxSessions = 65_536

// reserve counts a session that will be opened for a certificate, and reports whether it is within
// the bound. If so, the caller must call release once the session was added or not opened.
func (s *sessions) reserve(p record.Principal) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[p]+s.opening[p] >= s.most {
		return false
	}
	s.opening[p]++
	return true
}

// release ends a reservation. If the caller has gone, the session may still be opened later and
// counts from then on. The bound may thus be exceeded by at most the commands in the queue.
func (s *sessions) release(p record.Principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	less(s.opening, p)
}

// less subtracts 1 from a certificate's count, and removes a count of 0.
func less(counts map[record.Principal]int, p record.Principal) {
	if counts[p]--; counts[p] <= 0 {
		delete(counts, p)
	}
}

// admitOpening reserves a session for the caller's certificate. A retried OpenSession whose session
// is live opens none, and is admitted beyond the bound too.
func (d *sessionDesk) admitOpening(c *lead.Call, op *wire.OpenSession) (release func(), err error) {
	p := record.PrincipalOf(c.Caller)
	if d.sessions.reserve(p) {
		return func() { d.sessions.release(p) }, nil
	}
	var known bool
	err = d.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		known, err = statesession.HasNonce(d.Machine.View(r), op.GetNonce())
		return err
	})
	if err != nil || known {
		return func() {}, err
	}
	d.Metrics.SessionsRefused.Inc()
	if now := d.Clock.Now(); d.sessions.reportRefusal(now) {
		d.Log.Warn("a certificate reached its limit of sessions; the server refused another one",
			"node", c.Caller.Node, "role", c.Caller.Role, "sessions", d.cfg.MaxSessions)
	}
	return nil, &moraine.Error{Ref: c.Caller.Node, Kind: moraine.Unavailable,
		Err: fmt.Errorf("the certificate of %q has %d live sessions, its limit: close clients, issue more certificates, or raise --max-sessions (the session of a dead client ends after %v)",
			c.Caller.Node, d.cfg.MaxSessions, d.cfg.SessionTimeout)}
}

// reportRefusal reports whether to log a refusal now; one per minute is logged.
func (s *sessions) reportRefusal(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refused.IsZero() && now.Sub(s.refused) < time.Minute {
		return false
	}
	s.refused = now
	return true
}
