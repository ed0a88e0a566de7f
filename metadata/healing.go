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
	mu      sync.Mutex
	began   time.Time // zero: the queue is empty
	done    uint64    // stripes committed since
	bytes   uint64
	samples []healPoint // oldest first
}

type healPoint struct {
	at          time.Time
	done, bytes uint64
}

// note takes in how long the queue is.
func (h *healing) note(now time.Time, queued uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case queued == 0:
		h.began, h.done, h.bytes, h.samples = time.Time{}, 0, 0, nil
		return
	case h.began.IsZero():
		h.began = now
	}
	if n := len(h.samples); n > 0 && now.Sub(h.samples[n-1].at) < healSample {
		return
	}
	for len(h.samples) > 1 && now.Sub(h.samples[0].at) > healWindow {
		h.samples = h.samples[1:]
	}
	h.samples = append(h.samples, healPoint{now, h.done, h.bytes})
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
	first := h.samples[0]
	over := now.Sub(first.at)
	if over < healSample || h.done == first.done {
		return out
	}
	rate := float64(h.done-first.done) / over.Seconds()
	out.PerMinute = uint64(rate * 60)
	out.BytesPerSecond = uint64(float64(h.bytes-first.bytes) / over.Seconds())
	out.EtaMillis = max(uint64(float64(queued)/rate*1000), 1)
	return out
}

// commitRepair publishes what a mover rebuilt, and counts it.
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
	var bytes uint64
	err = l.store.View(func(r state.Reader, _ uint64) error {
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
			}
		}
		return nil
	})
	if err != nil {
		l.deps.Log.Warn("what was repaired could not be counted", "err", err)
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
