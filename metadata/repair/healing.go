package repair

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// healWindow is the period over which the repair rate is measured, and healSample the distance
	// between two samples.
	healWindow, healSample = time.Minute, time.Second
	// maxScans bounds how many running device scans are counted.
	maxScans = 1024
)

// healing is the leader's memory of repair progress since the queue was last empty. A new leader
// starts again.
type healing struct {
	mu    sync.Mutex
	began time.Time // zero: the queue is empty
	progress
}

// progress counts completed work and measures its recent rate.
type progress struct {
	done    uint64 // stripes committed
	bytes   uint64
	samples []healPoint // oldest first
}

type healPoint struct {
	at          time.Time
	done, bytes uint64
}

// sample records the present progress.
func (p *progress) sample(now time.Time) {
	if n := len(p.samples); n > 0 && now.Sub(p.samples[n-1].at) < healSample {
		return
	}
	for len(p.samples) > 1 && now.Sub(p.samples[0].at) > healWindow {
		p.samples = p.samples[1:]
	}
	p.samples = append(p.samples, healPoint{now, p.done, p.bytes})
}

// rates returns stripes and bytes per second; 0 if unknown.
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

// note records the length of the queue.
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

// report describes the progress, for a queue of that length.
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

// CommitRepair publishes what a mover rebuilt or moved, and counts it. Stripes that should stay as
// they are now are answered as stale: see unsafeMoves.
func (q *Queue) CommitRepair(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := q.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	asked := c.Req.GetCommitRepair()
	var kind wire.JobKind
	var kept map[uint64]bool
	err := q.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		if kind, err = fleet.JobKind(q.Machine.View(r), moraine.JobID(asked.GetJob())); err != nil {
			return err
		}
		kept, err = q.unsafeMoves(r, kind, asked.GetIntents())
		return err
	})
	if err != nil {
		return nil, err
	}
	req := proto.CloneOf(c.Req)
	req.GetCommitRepair().Intents = slices.DeleteFunc(req.GetCommitRepair().Intents, func(in *wire.Intent) bool { return kept[in.Stripe] })
	resp, err := q.Propose(ctx, c.Caller, req)
	if err != nil || resp.GetError() != nil {
		return resp, err
	}
	q.countRepaired(kind, req.GetCommitRepair().Intents, resp.GetCommitRepair().GetStale())
	if len(kept) > 0 {
		resp = proto.CloneOf(resp)
		reply := resp.GetCommitRepair()
		reply.Stale = append(reply.Stale, slices.Sorted(maps.Keys(kept))...)
	}
	return resp, nil
}

// unsafeMoves returns the filled intents' stripes that must stay as they are. A readable chunk must
// not die for one on a host that became silent, or was announced to be away, since the intent was
// made. The state does not know which hosts are up, and would accept such a move until the repair
// grace is over. A stripe that is only rebalanced also stays while another of its chunks cannot be
// read.
func (q *Queue) unsafeMoves(r kvtx.Reader, kind wire.JobKind, intents []*wire.Intent) (map[uint64]bool, error) {
	now := q.Clock.Now()
	kept := make(map[uint64]bool)
	for _, in := range intents {
		s, err := fleet.StripeByID(q.Machine.View(r), moraine.StripeID(in.Stripe))
		if err != nil {
			return nil, err
		}
		if s == nil || in.Index >= uint32(len(s.Chunks)) {
			continue // the state answers this
		}
		from := uint32(s.Chunks[in.Index].Device)
		if from == in.Device {
			continue // published before, or written over a bad chunk
		}
		v := q.fleet.Topology.View()
		if d := v.Devices[from]; d != nil && (d.Alive || planner{v}.perhaps(s.Chunks[in.Index])) && !q.fleet.Topology.Answers(in.Device, now) {
			kept[in.Stripe] = true
		}
		if kind != wire.JobKind_JOB_KIND_REBALANCE {
			continue
		}
		for i, c := range s.Chunks {
			if i != int(in.Index) && !q.fleet.Topology.Answers(uint32(c.Device), now) {
				kept[in.Stripe] = true
			}
		}
	}
	return kept, nil
}

// countRepaired counts what a mover has committed.
func (q *Queue) countRepaired(kind wire.JobKind, intents []*wire.Intent, notTaken []uint64) {
	seen := make(map[uint64]bool)
	var bytes, chunks uint64
	err := q.Store.View(func(r kvtx.Reader, _ uint64) error {
		for _, in := range intents {
			if slices.Contains(notTaken, in.Stripe) {
				continue
			}
			seen[in.Stripe] = true
			s, err := fleet.StripeByID(q.Machine.View(r), moraine.StripeID(in.Stripe))
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
		q.Log.Warn("could not count the repaired chunks", "err", err)
	}
	if kind == wire.JobKind_JOB_KIND_REBALANCE {
		q.Metrics.RebalancedChunks.Add(float64(chunks))
		q.Metrics.RebalancedBytes.Add(float64(bytes))
		q.rebalancer.moved(q.Clock.Now(), chunks, bytes)
		return
	}
	q.healing.repaired(uint64(len(seen)), bytes)
}

// healingNow describes the repair progress; nil if there is none.
func (q *Queue) healingNow(r kvtx.Reader, queued uint64) (*wire.Healing, error) {
	scans, err := jobs.PendingJobs(q.Machine.View(r), []wire.JobKind{wire.JobKind_JOB_KIND_SCAN_DEVICE}, maxScans)
	if err != nil {
		return nil, err
	}
	return q.healing.report(q.Clock.Now(), queued, uint32(len(scans))), nil
}
