package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// sessionChecks check sessions and their kept answers.
type sessionChecks struct {
	*checker
	sessions map[moraine.SessionID]bool // live ones; false for those still being cleaned up
}

func (c *sessionChecks) allSessions() error {
	err := c.each(record.TabSession, func(key, value []byte) error {
		s := &record.Session{Id: moraine.SessionID(record.LastU64(key))}
		c.sessions[s.Id] = true
		return s.Decode(value)
	})
	if err != nil {
		return err
	}
	return c.each(record.TabEndedSession, func(key, _ []byte) error {
		id := moraine.SessionID(record.LastU64(key))
		if c.sessions[id] {
			c.problem("session %s is both live and ended", id)
		}
		c.sessions[id] = false
		return nil
	})
}

// known reports whether a session is live or still being cleaned up.
func (c *sessionChecks) known(id moraine.SessionID) bool {
	_, ok := c.sessions[id]
	return ok
}

// answers checks that kept answers belong to known sessions, and that session records with an
// answer inside have the right count of other answers.
func (c *sessionChecks) answers() error {
	apart := map[moraine.SessionID]uint64{}
	err := c.each(record.TabAnswer, func(key, _ []byte) error {
		s := moraine.SessionID(record.LastU64(key[:11]))
		if apart[s]++; !c.known(s) {
			c.problem("the state has an answer for session %s, which has ended", s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(record.TabSession, func(key, value []byte) error {
		s := &record.Session{Id: moraine.SessionID(record.LastU64(key))}
		if err := s.Decode(value); err != nil {
			return err
		}
		if s.Apart != apart[s.Id] {
			c.problem("session %s has %d separate answers, but its record counts %d", s.Id, apart[s.Id], s.Apart)
		}
		if s.Number != 0 && s.Number < s.AckedBelow {
			c.problem("session %s has the answer to request %d, but acknowledged all below %d", s.Id, s.Number, s.AckedBelow)
		}
		return nil
	})
}
