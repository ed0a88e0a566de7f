package chunkserver

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine/internal/clock"
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

// bucketWatch watches the bucket for the heartbeats.
type bucketWatch struct {
	clock  clock.Clock
	bucket watchedBucket // nil: there is no bucket, or one that reports no health
	// chosen: the leader has chosen this server to probe an idle bucket often. The
	// heartbeat sets it.
	chosen atomic.Bool
}

// run probes an idle bucket from time to time, until ctx ends.
func (bw *bucketWatch) run(ctx context.Context) {
	tick := bw.clock.NewTicker(watchEvery)
	defer tick.Stop()
	for last := (time.Time{}); ; {
		every := watchSeldom
		if bw.chosen.Load() {
			every = watchEvery
		}
		h := bw.bucket.Health()
		if now := bw.clock.Now(); !h.Tried || h.Err != nil || now.Sub(last) >= every {
			last = now
			bw.bucket.Watch(ctx, every)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// health is the health of the bucket for a heartbeat; nil without a bucket.
func (bw *bucketWatch) health() *wire.BucketHealth {
	if bw.bucket == nil {
		return nil
	}
	h := bw.bucket.Health()
	w := &wire.BucketHealth{Tried: h.Tried}
	if h.Tried {
		w.SinceMillis = uint64(max(0, bw.clock.Since(h.Since).Milliseconds()))
	}
	if h.Err != nil {
		w.Error = wire.Text(h.Err.Error(), maxErrorText)
	}
	return w
}

// maxErrorText limits the text of an error in a heartbeat.
const maxErrorText = 300
