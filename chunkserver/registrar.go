package chunkserver

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/transport/wire"
)

// maxPause limits how many intervals pass until a refused host retries.
const maxPause = 64

// registrar registers the running host, with a change of its devices or as it is.
// Only the heartbeat loop calls it, and Run before that loop begins: it needs no
// lock. One registration runs at a time: of two, the older would mark as out what
// the newer had added. It runs beside the heartbeats, which continue; otherwise a
// lost answer would silence the host. The loop takes over the answers.
type registrar struct {
	cfg     *Config
	deps    *Deps
	meta    *metaState
	fleet   *atomic.Pointer[fleet] // in use; only the start and the registrar change it
	opener  *opener
	tasks   *deviceTasks
	changes *deviceChanges
	g       *errgroup.Group // of Run; set when the heartbeats begin

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
		r.asked = r.changing.fleet(r.fleet.Load())
	case r.again && r.left > 0:
		r.left--
		return
	case r.again:
		r.asked = r.fleet.Load()
	default:
		return
	}
	f, answer := r.asked, make(chan registration, 1)
	r.answer = answer
	r.g.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, registerTimeout*r.cfg.HeartbeatInterval)
		defer cancel()
		reply, err := r.ask(ctx, f)
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
			changes = r.changes.queue
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
		err = r.registered(f, a.reply)
	}
	switch {
	case err == nil:
		r.again, r.pause, r.left = false, 0, 0
		if c != nil {
			r.changing = nil
			r.serveBy(ctx, f, c)
		}
	case ctx.Err() != nil:
	case c != nil && final(err):
		r.changing, r.again, r.pause, r.left = nil, true, 0, 0
		c.refuse(ctx, r.changes, r.g, err)
	case c != nil:
		r.deps.Log.Warn("device change registration retried", "err", err)
	case final(err):
		r.pause = min(max(2*r.pause, 1), maxPause)
		r.left = r.pause
		r.deps.Log.Error("host registration refused", "err", err, "after", time.Duration(r.pause+1)*r.cfg.HeartbeatInterval)
	default:
		r.deps.Log.Warn("host registration retried", "err", err)
	}
}

// end waits for the running registration, and abandons a change that is not in use
// yet. ctx has ended.
func (r *registrar) end() {
	if r.asked != nil {
		<-r.answer
	}
	if r.changing != nil {
		r.changing.abandon(r.opener)
	}
}

// serveBy puts a registered change into use. The server finds a new device here
// before the metadata service has chunks put on it.
func (r *registrar) serveBy(ctx context.Context, f *fleet, c *change) {
	for _, d := range c.add {
		d.tier.Admit()
		r.g.Go(func() error { return r.tasks.tend(ctx, d) })
	}
	r.fleet.Store(f)
	for _, d := range c.drop {
		close(d.leave)
		r.g.Go(func() error {
			<-d.left
			r.opener.close(d)
			r.deps.Log.Info("device dropped", "device", d.dir, "id", d.id)
			close(d.closed)
			return nil
		})
	}
	close(c.done)
}
