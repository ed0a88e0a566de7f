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
	// A round plans what may be moved in balanceRound. The next one is planned when its
	// jobs have ended, so that what it did is counted.
	balanceRound = 10 * time.Second
	// balanceStuck is how long the leader rests when it found nothing to move.
	balanceStuck = 30 * time.Second
	// balancePage is how many chunks of a device are looked at in a turn, and
	// balanceLooks how many in a round.
	balancePage, balanceLooks = 16, 1 << 14
	// balanceDead bounds the dead chunks that are counted in a round.
	balanceDead = 1 << 18
	// balanceJob is how many stripes one job moves: few, so that many movers share a
	// round, and each is done soon.
	balanceJob = 8
)

// Rebalancer is the leader's memory of how the moves of chunks go that fill devices
// evenly. A new leader begins anew.
type Rebalancer struct {
	*lead.Term
	cfg     Config
	fleet   *fleet.Fleet
	steered lead.Poke // an administrator changed how devices are to be filled

	mu       sync.Mutex
	state    wire.RebalanceState
	settings record.RebalanceSettings
	spread   spread
	began    time.Time // zero: every device is within the band
	progress progress
	// from is where to go on looking at each device's chunks; the loop's alone.
	from map[uint32]moraine.StripeID
}

// rebalance moves chunks from the fullest devices to the emptiest until ctx ends, a
// round at a time. Repairs go first: no round begins while one is under way.
func (rb *Rebalancer) rebalance(ctx context.Context) {
	// Before each host that is alive has told how full it is, nothing can be judged; and
	// what the leader before had moved must be seen.
	rest := rb.cfg.Suspect + time.Second
	for rb.Pause(ctx, rb.steered, rest) {
		var err error
		if rest, err = rb.balanceRound(ctx); err != nil && ctx.Err() == nil {
			rb.Log.Warn("chunks could not be moved to emptier devices; trying again", "err", err)
			rest = rb.cfg.Suspect
		}
	}
}

// balanceRound plans one round, if there is anything to do, and returns how long to rest
// after it.
func (rb *Rebalancer) balanceRound(ctx context.Context) (rest time.Duration, err error) {
	began := rb.Clock.Now()
	if began.Sub(rb.Began) < rb.cfg.Suspect {
		return rb.cfg.Suspect, nil // an operator's word came before hosts were heard
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
		return balanceRound, nil // to judge may mean to count what is dead, which is not for nothing
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
			// Each host that is alive is heard of once more before the next plan.
			took := rb.Clock.Since(began)
			return max(rb.cfg.Suspect, p.takes-took), err
		}
	}
}

// balancePlan is what a round comes to.
type balancePlan struct {
	state    wire.RebalanceState
	settings record.RebalanceSettings
	spread   spread
	tasks    []*wire.RepairTask
	// unsure: not every chunk that might be moved was looked at.
	unsure bool
	// takes is how long the moves take at the rate that is allowed.
	takes time.Duration
}

// planBalance judges how evenly devices are filled, and chooses what to move.
func (rb *Rebalancer) planBalance() (p balancePlan, err error) {
	v, disks, unsure := rb.fleet.Topology.Fillings()
	err = rb.Store.View(func(r kvtx.Reader, _ uint64) error {
		var known bool
		p.settings, known, err = statefleet.RebalanceSettings(rb.Machine.View(r))
		if err != nil || !known {
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
		// Only now, for it is not for nothing.
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

// countDead takes what is dead off what is on each device: it is deleted after the
// grace, and would be moved twice. A device with more of it than can be counted gives
// nothing; the fullest, which come first, are counted before others.
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

// chooseMoves chooses what to move, and, where nothing can be moved between hosts, what
// within them.
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

// lookThrough goes over chunks of the fullest devices, some of each in turn, so that
// many devices give.
func (rb *Rebalancer) lookThrough(r kvtx.Reader, b *balancer, p *balancePlan) error {
	most := rb.cfg.RepairsPerSecond * int(balanceRound/time.Second)
	looks, taken := 0, make(map[moraine.StripeID]bool)
	sources := b.sources()
	for _, from := range sources { // one that is gone on with is not looked at from the start
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

// choosePage looks at one page of a device's chunks; end is whether all of them were
// looked at in this round.
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
		at[from.Id], end = 0, true // the next round begins with the first
	}
	return n, end, nil
}

// createMoves makes jobs of the moves of a round.
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

// SetRebalance changes the settings, and has them taken up at once.
func (rb *Rebalancer) SetRebalance(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	resp, err := rb.Mutate(ctx, c)
	if err == nil && resp.GetError() == nil {
		rb.steered.Set()
	}
	return resp, err
}

// note takes over what a round came to.
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

// report says how it goes; nil where nothing was judged yet.
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
