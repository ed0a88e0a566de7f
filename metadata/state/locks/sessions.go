package locks

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// Sessions says which sessions live, in one view of the state. It reads each session once.
type Sessions struct {
	v     *kvtx.View
	known map[uint64]bool // whether it lives
}

// NewSessions returns the sessions of a view.
func NewSessions(v *kvtx.View) *Sessions { return &Sessions{v: v, known: map[uint64]bool{}} }

// Conflict returns the lock of a living session that excludes want.
func (s *Sessions) Conflict(have locktable.Table, want locktable.Lock) (by locktable.Lock, found bool, err error) {
	if by, found = have.Conflict(want); !found {
		return by, false, nil
	}
	if have, err = s.live(have, want); err != nil {
		return by, false, err
	}
	by, found = have.Conflict(want)
	return by, found, nil
}

func (s *Sessions) lives(session uint64) (bool, error) {
	lives, ok := s.known[session]
	if ok {
		return lives, nil
	}
	_, lives, err := s.v.R.Get(s.v.K.Session(moraine.SessionID(session)))
	if err == nil {
		s.known[session] = lives
	}
	return lives, err
}

// live returns the table without the ended sessions that have a lock which excludes want.
func (s *Sessions) live(have locktable.Table, want locktable.Lock) (locktable.Table, error) {
	return s.without(have, want.Excludes)
}

// living returns the table without ended sessions.
func (s *Sessions) living(have locktable.Table) (locktable.Table, error) {
	return s.without(have, func(locktable.Lock) bool { return true })
}

// without returns the table without the ended sessions that have a lock for which one is true.
func (s *Sessions) without(have locktable.Table, one func(locktable.Lock) bool) (locktable.Table, error) {
	out := have
	dropped := map[uint64]bool{}
	for _, l := range have {
		if dropped[l.Session] || !one(l) {
			continue
		}
		lives, err := s.lives(l.Session)
		if err != nil {
			return nil, err
		}
		if !lives {
			dropped[l.Session] = true
			out = out.Drop(l.Session)
		}
	}
	return out, nil
}
