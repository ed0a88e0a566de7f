package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
)

// A session has a directory as its root, which the scope of its certificate named when it was
// opened. When that directory, or one above it, is renamed, the scope names another one or
// none: the session ends, for its root is somewhere that the certificate does not reach.

// met notes the connection by which a session was met, and has its root looked at where a
// directory confines its certificate.
func (d *sessionDesk) met(ses *session, c *lead.Call) {
	ses.peer.Store(c.Peer)
	if c.Caller.Scope != "/" {
		d.strayed.Store(true)
	}
}

// endStrayed decides the end of the sessions whose root is outside the scope of their
// certificate. It looks only after a directory lost a name, or a session was met by another
// connection. Of a session that this leader has not met the scope is not known.
func (d *sessionDesk) endStrayed(context.Context, time.Time) error {
	if !d.strayed.Swap(false) {
		return nil
	}
	ended := 0
	err := d.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		ended, err = d.sessions.endOutside(func(scope string, root uint64) (bool, error) {
			return names.InScope(d.Machine.View(r), scope, moraine.InodeID(root))
		})
		return err
	})
	if err != nil {
		d.strayed.Store(true)
	} else if ended > 0 {
		d.Log.Info("sessions end: their directory is not where the scope of their certificate is", "sessions", ended)
	}
	return err
}

// endOutside decides the end of the sessions for which inside, which is asked once for each
// scope and root, says no.
func (s *sessions) endOutside(inside func(scope string, root uint64) (bool, error)) (ended int, err error) {
	type place struct {
		scope string
		root  uint64
	}
	known := map[place]bool{}
	for _, ses := range s.all() {
		p := ses.peer.Load()
		if p == nil || roleOf(p.Role) != clients {
			continue
		}
		at := place{cleanScope(p.Scope), ses.root}
		in, asked := known[at]
		if !asked {
			if at.scope == "/" {
				continue
			}
			if in, err = inside(at.scope, at.root); err != nil {
				return ended, err
			}
			known[at] = in
		}
		if !in && s.end(ses) {
			ended++
		}
	}
	return ended, nil
}

// all returns the sessions of now.
func (s *sessions) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.byID))
	for _, ses := range s.byID {
		all = append(all, ses)
	}
	return all
}

// end decides the end of a session; false where that was decided before.
func (s *sessions) end(ses *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := ses.ending
	ses.ending = true
	return !was
}
