package chunkserver

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/transport/wire"
)

// maxPause bounds how many intervals pass until a host that was refused asks again.
const maxPause = 64

// registrar registers the host while it runs: with a change of its devices, or as it is.
// The loop of heartbeats alone calls it, and one registration is under way at a time: of
// two the older would declare out what the newer had added. It is asked beside the
// heartbeats, which go on, or an answer that is lost would have the host suspected; what
// is answered is taken over by the loop.
type registrar struct {
	s *Server
	g *errgroup.Group
	// changing is the change to register with; nil: there is none.
	changing *change
	// again: the host must be registered as it is, for the service asks for it, or may have
	// taken a registration that was given up. After a refusal that waits for left intervals,
	// of pause.
	again       bool
	pause, left int
	// asked is the fleet of the registration that is under way, and answer what it comes
	// to; nil: none is.
	asked  *fleet
	answer chan registration
}

// registration is how one ended.
type registration struct {
	reply *wire.RegisterHostReply
	err   error
}

// want has the host registered as it is. What is under way comes first: if the service has
// not got it by then, it asks again.
func (r *registrar) want() {
	if r.changing == nil && r.asked == nil {
		r.again = true
	}
}

// begin begins a registration, where one is due.
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

// serveUntil takes answers until the next heartbeat is due: at a tick, or when a change
// comes, so that it is told of soon. It reports false when ctx ends.
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

// take takes in how a registration ended.
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
		r.s.deps.Log.Warn("the service does not know yet which devices come and go; trying again", "err", err)
	case final(err):
		r.pause = min(max(2*r.pause, 1), maxPause)
		r.left = r.pause
		r.s.deps.Log.Error("the service refuses this host; asking again later", "err", err, "after", time.Duration(r.pause+1)*r.s.cfg.HeartbeatInterval)
	default:
		r.s.deps.Log.Warn("the service does not answer what this host has; trying again", "err", err)
	}
}

// end waits for what is under way, and gives up a change that is not served by yet. ctx
// has ended.
func (r *registrar) end() {
	if r.asked != nil {
		<-r.answer
	}
	if r.changing != nil {
		r.changing.abandon(r.s)
	}
}
