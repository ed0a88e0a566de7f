package metadata

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// healWindow is over how long the rate of repair is taken, and healSample how
	// far two samples of it are apart.
	healWindow, healSample = time.Minute, time.Second
	// maxScans bounds how many devices that are being looked through are counted.
	maxScans = 1024
)

// healing is the leader's memory of how repair goes, from the moment that the
// queue was last empty. A new leader begins anew.
type healing struct {
	mu    sync.Mutex
	began time.Time // zero: the queue is empty
	progress
}

// progress counts what is done, and says how fast it went of late.
type progress struct {
	done    uint64 // stripes committed
	bytes   uint64
	samples []healPoint // oldest first
}

type healPoint struct {
	at          time.Time
	done, bytes uint64
}

// sample notes how far it is now.
func (p *progress) sample(now time.Time) {
	if n := len(p.samples); n > 0 && now.Sub(p.samples[n-1].at) < healSample {
		return
	}
	for len(p.samples) > 1 && now.Sub(p.samples[0].at) > healWindow {
		p.samples = p.samples[1:]
	}
	p.samples = append(p.samples, healPoint{now, p.done, p.bytes})
}

// rates are stripes and bytes a second; 0 where they are not known.
func (p *progress) rates(now time.Time) (stripes, bytes float64) {
	if len(p.samples) == 0 {
		return 0, 0
	}
	first := p.samples[0]
	over := now.Sub(first.at)
	if over < healSample || p.done == first.done {
		return 0, 0
	}
	return float64(p.done-first.done) / over.Seconds(), float64(p.bytes-first.bytes) / over.Seconds()
}

// note takes in how long the queue is.
func (h *healing) note(now time.Time, queued uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case queued == 0:
		h.began, h.progress = time.Time{}, progress{}
		return
	case h.began.IsZero():
		h.began = now
	}
	h.sample(now)
}

// repaired counts stripes that a mover committed.
func (h *healing) repaired(stripes, bytes uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done, h.bytes = h.done+stripes, h.bytes+bytes
}

// report says how far it is, of a queue of that length.
func (h *healing) report(now time.Time, queued uint64, scanning uint32) *wire.Healing {
	h.mu.Lock()
	defer h.mu.Unlock()
	if queued == 0 && scanning == 0 {
		return nil
	}
	out := &wire.Healing{Done: h.done, Total: h.done + queued, Scanning: scanning}
	if h.began.IsZero() || len(h.samples) == 0 {
		return out
	}
	out.ElapsedMillis = uint64(now.Sub(h.began).Milliseconds())
	rate, bytes := h.rates(now)
	if rate == 0 {
		return out
	}
	out.PerMinute = uint64(rate * 60)
	out.BytesPerSecond = uint64(bytes)
	out.EtaMillis = max(uint64(float64(queued)/rate*1000), 1)
	return out
}

// commitRepair publishes what a mover rebuilt or moved, and counts it.
func (l *leader) commitRepair(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	resp, err := l.mutate(ctx, c)
	if err != nil || resp.GetError() != nil {
		return resp, err
	}
	stale := make(map[uint64]bool)
	for _, id := range resp.GetCommitRepair().GetStale() {
		stale[id] = true
	}
	seen := make(map[uint64]bool)
	var bytes, chunks uint64
	var kind wire.JobKind
	err = l.store.View(func(r state.Reader, _ uint64) (err error) {
		if kind, err = l.machine.JobKind(r, moraine.JobID(c.req.GetCommitRepair().GetJob())); err != nil {
			return err
		}
		for _, in := range c.req.GetCommitRepair().GetIntents() {
			if stale[in.Stripe] {
				continue
			}
			seen[in.Stripe] = true
			s, err := l.machine.StripeByID(r, moraine.StripeID(in.Stripe))
			if err != nil {
				return err
			}
			if s != nil {
				bytes += uint64(s.Scheme.ChunkLen(s.Length))
				chunks++
			}
		}
		return nil
	})
	if err != nil {
		l.deps.Log.Warn("what was repaired could not be counted", "err", err)
	}
	if kind == wire.JobKind_JOB_KIND_REBALANCE {
		l.deps.Metrics.RebalancedChunks.Add(float64(chunks))
		l.deps.Metrics.RebalancedBytes.Add(float64(bytes))
		l.balancing.moved(l.deps.Clock.Now(), chunks, bytes)
		return resp, nil
	}
	l.healing.repaired(uint64(len(seen)), bytes)
	return resp, nil
}

// healingNow describes the repair for people; nil where there is none.
func (l *leader) healingNow(r state.Reader, queued uint64) (*wire.Healing, error) {
	scans, err := l.machine.PendingJobs(r, []wire.JobKind{wire.JobKind_JOB_KIND_SCAN_DEVICE}, maxScans)
	if err != nil {
		return nil, err
	}
	return l.healing.report(l.deps.Clock.Now(), queued, uint32(len(scans))), nil
}
