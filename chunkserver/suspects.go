package chunkserver

import (
	"context"
	"errors"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxSuspects bounds the stripes that wait to be verified. Others are dropped: a
	// reader that still finds their chunks bad reports them again.
	maxSuspects = 256
	// wholeSample makes the metadata service sample every stripe of a slice.
	wholeSample = 10_000
)

// suspects verifies the chunks that clients reported as bad.
type suspects struct {
	deps  *Deps
	meta  *metaState
	fleet *atomic.Pointer[fleet]
	tasks *deviceTasks
	queue chan *wire.SuspectChunk
	limit *rate.Limiter // of the bytes read; nil: none. Only run uses it.
}

func newSuspects(cfg *Config, deps *Deps, meta *metaState, fleet *atomic.Pointer[fleet], tasks *deviceTasks) *suspects {
	return &suspects{deps: deps, meta: meta, fleet: fleet, tasks: tasks, queue: make(chan *wire.SuspectChunk, maxSuspects), limit: scrubLimit(cfg)}
}

// take queues the chunks that clients reported to the metadata service as bad.
func (su *suspects) take(all []*wire.SuspectChunk) {
	for _, w := range all {
		select {
		case su.queue <- w:
		default:
			return
		}
	}
}

// run verifies chunks that clients reported as bad, until ctx ends, at the pace of a
// scrub. A client's report alone is no proof: only what this server reads from its
// medium and its memory is reported, and repaired.
func (su *suspects) run(ctx context.Context) {
	for {
		var w *wire.SuspectChunk
		select {
		case <-ctx.Done():
			return
		case w = <-su.queue:
		}
		d := su.fleet.Load().byID[moraine.DeviceID(w.Device)]
		if d == nil || d.tier.Err() != nil || su.meta.applied.Load() == 0 {
			continue
		}
		found, err := su.verify(ctx, d, w)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			su.deps.Log.Warn("reported chunks could not be verified", "device", d.dir, "stripe", moraine.StripeID(w.Stripe), "err", err)
			continue
		case found > 0:
			su.deps.Metrics.Suspects.WithLabelValues("bad").Inc()
		default:
			su.deps.Metrics.Suspects.WithLabelValues("good").Inc()
		}
	}
}

// verify verifies the chunks of one stripe that a device has, and reports the bad
// and the missing ones. It returns how many there are.
func (su *suspects) verify(ctx context.Context, d *device, w *wire.SuspectChunk) (found uint64, err error) {
	slice := &wire.ReportChunks{Device: uint32(d.id), From: w.Stripe, To: w.Stripe + 1, PassStarted: su.meta.applied.Load(), Scrub: true}
	if w.Parity && su.deps.CheckParity != nil {
		slice.ParitySample = wholeSample
	}
	headers, err := d.tier.List(ctx, moraine.ChunkID{Stripe: moraine.StripeID(w.Stripe)}, moraine.MaxChunks)
	if err != nil {
		return 0, err
	}
	n := 0
	for n < len(headers) && headers[n].ID.Stripe == moraine.StripeID(w.Stripe) {
		n++
	}
	sc := newScrubber(su.tasks, d, su.limit)
	_, found, err = sc.verifySlice(ctx, slice, headers[:n], sc.verifyAll)
	return found, err
}

// verifyAll is verify of a chunk on the medium and of its copy in memory, which
// readers get.
func (sc *scrubber) verifyAll(ctx context.Context, h *tiers.Header) (*tiers.Header, error) {
	found, err := sc.verify(ctx, h)
	if err != nil && !errors.Is(err, moraine.NotFound) {
		return nil, err
	}
	v, e := sc.d.tier.View(ctx, h.ID, 0, h.Length)
	if e == nil {
		v.Release()
	}
	if errors.Is(e, moraine.Corrupt) {
		return nil, e
	}
	return found, err
}
