package chunkserver

import (
	"context"
	"time"

	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// Each heartbeat reports the health of the bucket. Requests for pieces and those of
// the mover show it while there are any; the server probes an idle bucket from time
// to time.

// watchedBucket is a Bucket that reports the health of its store, as *object.Bucket
// does.
type watchedBucket interface {
	Health() object.Health
	// Watch probes the bucket, unless the store has answered within idle.
	Watch(ctx context.Context, idle time.Duration)
}

const (
	// watchEvery is how often a server checks the bucket if the leader has chosen
	// it for that, and watchSeldom if not. Of thousands of hosts, a few need to
	// probe often to detect that the bucket hangs. The others only verify that
	// their own path to it works.
	watchEvery  = 5 * time.Second
	watchSeldom = time.Minute
)

// watchBucket probes an idle bucket from time to time, until ctx ends.
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

// bucketHealth is the health of the bucket for a heartbeat; nil without a bucket.
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

// maxErrorText limits the text of an error in a heartbeat.
const maxErrorText = 300
