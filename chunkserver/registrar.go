package chunkserver

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/transport/wire"
)

// maxPause limits how many intervals pass until a refused host retries.
const maxPause = 64

// registrar registers the running host, with a change of its devices or as it is.
// Only the heartbeat loop calls it. One registration runs at a time: of two, the
// older would mark as out what the newer had added. It runs beside the heartbeats,
// which continue; otherwise a lost answer would silence the host. The loop takes
// over the answers.
type registrar struct {
	s *Server
	g *errgroup.Group
	// changing is the change to register; nil: none.
	changing *change
	// again: the host must be registered as it is, since the metadata service
	// requests it, or may have accepted a registration that we stopped. After a
	// refusal that waits for left intervals, of pause.
	again       bool
	pause, left int
	// asked is the fleet of the running registration, and answer receives its
	// result; nil: none runs.
	asked  *fleet
	answer chan registration
}

// registration is the result of one.
type registration struct {
	reply *wire.RegisterHostReply
	err   error
}

// want requests a registration of the host as it is. The running one comes first:
// if the metadata service does not have it by then, it requests another.
func (r *registrar) want() {
	if r.changing == nil && r.asked == nil {
		r.again = true
	}
}

// begin starts a registration, if one is due.
func (r *registrar) begin(ctx context.Context) {
	switch {
	case r.asked != nil:
		return
	case r.changing != nil:
		r.asked = r.changing.fleet(r.s.fleet.Load())
	case r.again && r.left > 0:
		r.left--
		return
	case r.again:
		r.asked = r.s.fleet.Load()
	default:
		return
	}
	f, answer := r.asked, make(chan registration, 1)
	r.answer = answer
	r.g.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, registerTimeout*r.s.cfg.HeartbeatInterval)
		defer cancel()
		reply, err := r.s.askToRegister(ctx, f)
		answer <- registration{reply, err}
		return nil
	})
}

// serveUntil takes answers until the next heartbeat is due: at a tick, or when a
// change comes, so that it is registered soon. It returns false when ctx ends.
func (r *registrar) serveUntil(ctx context.Context, tick <-chan time.Time) bool {
	for {
		var changes <-chan *change
		if r.changing == nil && r.asked == nil {
			changes = r.s.changes
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case c := <-changes:
			r.changing = c
			return true
		case a := <-r.answer:
			r.take(ctx, a)
		}
	}
}

// take processes the result of a registration.
func (r *registrar) take(ctx context.Context, a registration) {
	f, c := r.asked, r.changing
	r.asked, r.answer = nil, nil
	err := a.err
	if err == nil {
		err = r.s.registered(f, a.reply)
	}
	switch {
	case err == nil:
		r.again, r.pause, r.left = false, 0, 0
		if c != nil {
			r.changing = nil
			r.s.serveBy(ctx, r.g, f, c)
		}
	case ctx.Err() != nil:
	case c != nil && final(err):
		r.changing, r.again, r.pause, r.left = nil, true, 0, 0
		c.refuse(ctx, r.s, r.g, err)
	case c != nil:
		r.s.deps.Log.Warn("device change registration retried", "err", err)
	case final(err):
		r.pause = min(max(2*r.pause, 1), maxPause)
		r.left = r.pause
		r.s.deps.Log.Error("host registration refused", "err", err, "after", time.Duration(r.pause+1)*r.s.cfg.HeartbeatInterval)
	default:
		r.s.deps.Log.Warn("host registration retried", "err", err)
	}
}

// end waits for the running registration, and abandons a change that is not in use
// yet. ctx has ended.
func (r *registrar) end() {
	if r.asked != nil {
		<-r.answer
	}
	if r.changing != nil {
		r.changing.abandon(r.s)
	}
}
