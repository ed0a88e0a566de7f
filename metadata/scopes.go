package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
)

// A session's root is the directory that its certificate's scope named when the session was opened.
// If that directory, or one above it, is renamed, the scope names another directory or none. The
// session then ends, because its root is outside its certificate's scope.

// met records the connection of a session's request. If the certificate is confined to a directory,
// the next tick checks the session's root.
func (d *sessionDesk) met(ses *session, c *lead.Call) {
	ses.peer.Store(c.Peer)
	if c.Caller.Scope != "/" {
		d.strayed.Store(true)
	}
}

// endStrayed marks sessions whose root is outside their certificate's scope for expiry. It checks
// only after a directory lost a name, or a session used another connection. The scope of a session
// without a request to this leader is unknown.
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
		d.Log.Info("ending sessions: the scope of their certificate is now another directory", "sessions", ended)
	}
	return err
}

// endOutside marks the sessions for expiry for which inside returns false. It calls inside once per
// scope and root.
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

// all returns the present sessions.
func (s *sessions) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.byID))
	for _, ses := range s.byID {
		all = append(all, ses)
	}
	return all
}

// end marks a session for expiry; false if it was already marked.
func (s *sessions) end(ses *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := ses.ending
	ses.ending = true
	return !was
}
