package repair

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	statefleet "github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// A round plans moves that take about balanceRound. The next round is planned after its jobs
	// have ended, so that their effect is counted.
	balanceRound = 10 * time.Second
	// balanceStuck is how long the leader rests when it found nothing to move.
	balanceStuck = 30 * time.Second
	// balancePage is the number of a device's chunks inspected per turn, and balanceLooks that per
	// round.
	balancePage, balanceLooks = 16, 1 << 14
	// balanceDead bounds the dead chunks counted per round.
	balanceDead = 1 << 18
	// balanceJob is the number of stripes that one job moves. It is small, so that many movers
	// share a round and each finishes soon.
	balanceJob = 8
)

// Rebalancer is the leader's memory of the moves that balance devices. A new leader starts again.
type Rebalancer struct {
	*lead.Term
	cfg     Config
	fleet   *fleet.Fleet
	steered lead.Poke // an administrator changed the settings

	mu       sync.Mutex
	state    wire.RebalanceState
	settings record.RebalanceSettings
	spread   spread
	began    time.Time // zero: every device is within the band
	progress progress
	// from is where to continue among each device's chunks; only the loop uses it.
	from map[uint32]moraine.StripeID
}

// rebalance moves chunks from the fullest devices to the emptiest, in rounds, until ctx ends.
// Repairs have priority: no round begins while one is running.
func (rb *Rebalancer) rebalance(ctx context.Context) {
	// Wait until each host that is up has reported how full it is, with the previous leader's moves
	// included.
	rest := rb.cfg.Suspect + time.Second
	for rb.Pause(ctx, rb.steered, rest) {
		var err error
		if rest, err = rb.balanceRound(ctx); err != nil && ctx.Err() == nil {
			rb.Log.Warn("chunks could not be moved to emptier devices; trying again", "err", err)
			rest = rb.cfg.Suspect
		}
	}
}

// balanceRound plans one round, if there is anything to do, and returns how long to rest after it.
func (rb *Rebalancer) balanceRound(ctx context.Context) (rest time.Duration, err error) {
	began := rb.Clock.Now()
	if began.Sub(rb.Began) < rb.cfg.Suspect {
		return rb.cfg.Suspect, nil // an administrator's request arrived before the hosts' reports
	}
	p, err := rb.planBalance()
	if err != nil {
		return 0, err
	}
	rb.note(began, p)
	rb.Metrics.RebalanceLeft.Set(float64(p.spread.left))
	if p.state != wire.RebalanceState_REBALANCE_STATE_MOVING {
		if p.state == wire.RebalanceState_REBALANCE_STATE_STUCK {
			return balanceStuck, nil
		}
		return balanceRound, nil // judging may require counting dead chunks, which is expensive
	}
	if err := rb.createMoves(ctx, p.tasks); err != nil {
		return 0, err
	}
	for {
		if !rb.Pause(ctx, nil, time.Second) {
			return 0, ctx.Err()
		}
		var running uint64
		err := rb.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
			running, err = statefleet.Rebalancing(rb.Machine.View(r))
			return err
		})
		if err != nil || running == 0 {
			// Each host that is up reports once more before the next plan.
			took := rb.Clock.Since(began)
			return max(rb.cfg.Suspect, p.takes-took), err
		}
	}
}

// balancePlan is the plan of a round.
type balancePlan struct {
	state    wire.RebalanceState
	settings record.RebalanceSettings
	spread   spread
	tasks    []*wire.RepairTask
	// unsure: some chunks that might be moved were not inspected.
	unsure bool
	// takes is how long the moves take at the permitted rate.
	takes time.Duration
}

// planBalance measures how evenly devices are filled, and chooses moves.
func (rb *Rebalancer) planBalance() (p balancePlan, err error) {
	v, disks, unsure := rb.fleet.Topology.Fillings()
	err = rb.Store.View(func(r kvtx.Reader, _ uint64) error {
		if p.settings, err = statefleet.RebalanceSettings(rb.Machine.View(r)); err != nil {
			return err
		}
		band := float64(p.settings.BandPermille) / 1000
		round := int64(balanceRound / time.Second)
		b := newBalancer(v, disks, band, int64(p.settings.BytesPerSecond)*round)
		p.spread = b.spread()
		busy, err := rb.fleet.Repairing(r)
		switch {
		case err != nil:
			return err
		case p.settings.Paused:
			p.state = wire.RebalanceState_REBALANCE_STATE_PAUSED
		case p.spread.outside == 0:
			p.state = wire.RebalanceState_REBALANCE_STATE_EVEN
		case busy:
			p.state = wire.RebalanceState_REBALANCE_STATE_WAITING
		}
		if p.state != wire.RebalanceState_REBALANCE_STATE_UNSPECIFIED {
			return nil
		}
		// Do this last, because it is expensive.
		if err := rb.countDead(r, disks); err != nil {
			return err
		}
		b = newBalancer(v, disks, band, int64(p.settings.BytesPerSecond)*round)
		if p.spread = b.spread(); p.spread.outside == 0 {
			p.state = wire.RebalanceState_REBALANCE_STATE_EVEN
			return nil
		}
		p.unsure = unsure
		return rb.chooseMoves(r, b, &p)
	})
	return p, err
}

// countDead subtracts dead chunks from each device's fill: they will be deleted after the grace and
// must not be moved. A device with more than can be counted gives nothing. The fullest devices are
// counted first.
func (rb *Rebalancer) countDead(r kvtx.Reader, disks []fleet.Filling) error {
	left := balanceDead
	for i := range disks {
		bytes, chunks, all, err := statefleet.DeadBytes(rb.Machine.View(r), moraine.DeviceID(disks[i].Id), left)
		if err != nil {
			return err
		}
		left -= chunks
		disks[i].Used -= min(disks[i].Used, bytes)
		disks[i].Gives = disks[i].Gives && all
	}
	return nil
}

// chooseMoves chooses moves between hosts, or, if none is possible, within hosts.
func (rb *Rebalancer) chooseMoves(r kvtx.Reader, b *balancer, p *balancePlan) error {
	if err := rb.lookThrough(r, b, p); err != nil {
		return err
	}
	if len(p.tasks) == 0 && !p.unsure {
		b.within = true
		if err := rb.lookThrough(r, b, p); err != nil {
			return err
		}
	}
	p.state = wire.RebalanceState_REBALANCE_STATE_MOVING
	if len(p.tasks) == 0 && !p.unsure {
		p.state = wire.RebalanceState_REBALANCE_STATE_STUCK
	}
	var moved int64
	for host := range b.out {
		moved = max(moved, b.budget-b.out[host], b.budget-b.in[host])
	}
	p.takes = time.Duration(float64(moved) / float64(p.settings.BytesPerSecond) * float64(time.Second))
	return nil
}

// lookThrough inspects chunks of the fullest devices, some of each in turn, so that many devices
// give.
func (rb *Rebalancer) lookThrough(r kvtx.Reader, b *balancer, p *balancePlan) error {
	most := rb.cfg.RepairsPerSecond * int(balanceRound/time.Second)
	looks, taken := 0, make(map[moraine.StripeID]bool)
	sources := b.sources()
	for _, from := range sources { // a device already in progress is not started again
		p.unsure = p.unsure || rb.from[from.Id] != 0
	}
	for len(sources) > 0 && looks < balanceLooks && len(p.tasks) < most {
		var again []*fleet.Filling
		for _, from := range sources {
			n, end, err := rb.choosePage(r, b, p, from, taken)
			if err != nil {
				return err
			}
			if looks += n; !end && b.out[from.Host] > 0 {
				again = append(again, from)
			}
		}
		sources = again
	}
	p.unsure = p.unsure || len(sources) > 0
	return nil
}

// choosePage inspects one page of a device's chunks; end says that all of them were inspected in
// this round.
func (rb *Rebalancer) choosePage(r kvtx.Reader, b *balancer, p *balancePlan, from *fleet.Filling, taken map[moraine.StripeID]bool) (n int, end bool, err error) {
	at := rb.from
	page, err := statefleet.ExpectedChunks(rb.Machine.View(r), moraine.DeviceID(from.Id), at[from.Id], 0, balancePage)
	if err != nil {
		return 0, false, err
	}
	for _, e := range page {
		id := e.Chunk.Stripe
		at[from.Id] = id + 1
		queued, err := statefleet.Queued(rb.Machine.View(r), id)
		if err != nil {
			return n, false, err
		}
		n++
		if queued || taken[id] {
			continue
		}
		s, err := statefleet.StripeByID(rb.Machine.View(r), id)
		if err != nil {
			return n, false, err
		}
		if s == nil {
			continue
		}
		if in := b.move(s); in != nil {
			taken[id] = true
			p.tasks = append(p.tasks, &wire.RepairTask{Stripe: &wire.Stripe{Id: uint64(id)}, Intents: []*wire.Intent{in}})
		}
	}
	if len(page) < balancePage {
		at[from.Id], end = 0, true // the next round starts with the first
	}
	return n, end, nil
}

// createMoves creates jobs for the moves of a round.
func (rb *Rebalancer) createMoves(ctx context.Context, tasks []*wire.RepairTask) error {
	for len(tasks) > 0 {
		n := min(balanceJob, len(tasks))
		job := &wire.Job{Kind: wire.JobKind_JOB_KIND_REBALANCE, Repairs: tasks[:n], Subject: fmt.Sprintf("%d chunks to emptier devices", n)}
		if _, err := rb.Command(ctx, &statepb.Command{Op: &statepb.Command_CreateJobs{
			CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}); err != nil {
			return err
		}
		tasks = tasks[n:]
	}
	return nil
}

// SetRebalance changes the settings, which apply at once.
func (rb *Rebalancer) SetRebalance(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	resp, err := rb.Mutate(ctx, c)
	if err == nil && resp.GetError() == nil {
		rb.steered.Set()
	}
	return resp, err
}

// note records the result of a round.
func (b *Rebalancer) note(now time.Time, p balancePlan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, b.settings, b.spread = p.state, p.settings, p.spread
	if p.state == wire.RebalanceState_REBALANCE_STATE_EVEN {
		b.began, b.progress = time.Time{}, progress{}
		return
	}
	if b.began.IsZero() {
		b.began = now
	}
	b.progress.sample(now)
}

// moved counts chunks that a mover committed.
func (b *Rebalancer) moved(now time.Time, chunks, bytes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress.done, b.progress.bytes = b.progress.done+chunks, b.progress.bytes+bytes
	b.spread.left -= min(b.spread.left, bytes)
	b.progress.sample(now)
}

// report describes the progress; nil if nothing was measured yet.
func (b *Rebalancer) report(now time.Time) *wire.Rebalance {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == wire.RebalanceState_REBALANCE_STATE_UNSPECIFIED {
		return nil
	}
	permille := func(f float64) uint32 { return uint32(f*1000 + 0.5) }
	out := &wire.Rebalance{State: b.state, BandPermille: b.settings.BandPermille, LimitBytesPerSecond: b.settings.BytesPerSecond,
		MeanPermille: permille(b.spread.mean), FullestPermille: permille(b.spread.most), FullestDevice: b.spread.fullest,
		EmptiestPermille: permille(b.spread.least), EmptiestDevice: b.spread.emptiest,
		Outside: uint32(b.spread.outside), LeftBytes: b.spread.left, MovedChunks: b.progress.done, MovedBytes: b.progress.bytes}
	if b.began.IsZero() {
		return out
	}
	out.ElapsedMillis = uint64(now.Sub(b.began).Milliseconds())
	_, rate := b.progress.rates(now)
	out.BytesPerSecond = uint64(rate)
	if rate > 0 && b.state == wire.RebalanceState_REBALANCE_STATE_MOVING {
		out.EtaMillis = max(uint64(float64(b.spread.left)/rate*1000), 1)
	}
	return out
}
