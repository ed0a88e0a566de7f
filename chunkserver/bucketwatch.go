package chunkserver

import (
	"context"
	"time"

	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// How the bucket answers goes to the service with each heartbeat. Requests of pieces and of
// the mover show it while there are any; an idle bucket is asked now and then.

// watchedBucket is a Bucket that knows how its store answers, as *object.Bucket does.
type watchedBucket interface {
	Health() object.Health
	// Watch asks the store whether the bucket is there, unless it has answered within idle.
	Watch(ctx context.Context, idle time.Duration)
}

const (
	// watchEvery is how often a server looks whether the bucket has answered of late, if the
	// service has chosen it for that; watchSeldom, if not: of thousands of hosts a few need
	// to ask often to know that the bucket hangs, the others that their own way to it works.
	watchEvery  = 5 * time.Second
	watchSeldom = time.Minute
)

// watchBucket asks an idle bucket now and then, until ctx ends.
func (s *Server) watchBucket(ctx context.Context, b watchedBucket) {
	tick := s.deps.Clock.NewTicker(watchEvery)
	defer tick.Stop()
	for last := (time.Time{}); ; {
		every := watchSeldom
		if s.watches.Load() {
			every = watchEvery
		}
		h := b.Health()
		if now := s.deps.Clock.Now(); !h.Tried || h.Err != nil || now.Sub(last) >= every {
			last = now
			b.Watch(ctx, every)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// bucketHealth is how the bucket answers, for a heartbeat; nil where there is none.
func (s *Server) bucketHealth() *wire.BucketHealth {
	b, ok := s.deps.Bucket.(watchedBucket)
	if !ok {
		return nil
	}
	h := b.Health()
	w := &wire.BucketHealth{Tried: h.Tried}
	if h.Tried {
		w.SinceMillis = uint64(max(0, s.deps.Clock.Since(h.Since).Milliseconds()))
	}
	if h.Err != nil {
		w.Error = wire.Text(h.Err.Error(), maxErrorText)
	}
	return w
}

// maxErrorText bounds the text of an error that a heartbeat carries.
const maxErrorText = 300
