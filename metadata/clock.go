package metadata

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

const (
	// maxTick bounds how far one tick advances cluster time.
	maxTick = time.Second
	// clockGap is the time without any work above which this server may have been stopped or cut
	// off. The silence of other servers then proves nothing.
	clockGap = 2 * lead.TickEvery
)

// pulse is a goroutine that does nothing but note the time. Where it too did nothing for a while, the
// process was stopped. Where only the ticks took long, the work of the leader is slow, or its disk, and
// other servers were heard meanwhile. Methods may be called concurrently.
type pulse struct {
	clock clock.Clock

	mu      sync.Mutex // guards the fields below
	last    time.Time
	longest time.Duration // between two beats since the last call of pause
}

func (p *pulse) beat(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() {
		p.longest = max(p.longest, now.Sub(p.last))
	}
	p.last = now
}

// pause returns the longest time without a beat since the last call.
func (p *pulse) pause(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest := max(p.longest, now.Sub(p.last))
	p.longest = 0
	return longest
}

// keep beats until ctx ends.
func (p *pulse) keep(ctx context.Context) {
	ticker := p.clock.NewTicker(lead.TickEvery)
	defer ticker.Stop()
	for {
		p.beat(p.clock.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// keepTime advances cluster time, and does the work that depends on time, until ctx ends.
func (l *leader) keepTime(ctx context.Context) {
	ticker := l.Clock.NewTicker(lead.TickEvery)
	defer ticker.Stop()
	last := l.Clock.Now()
	l.pulse.beat(last)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := l.Clock.Now()
		elapsed := now.Sub(last)
		last = now
		if pause := l.pulse.pause(now); elapsed > clockGap && pause > clockGap {
			l.Metrics.ClockGaps.Inc()
			l.Log.Warn("the clock jumped: the leader renews every session and host for a full term", "elapsed", elapsed)
			l.sessions.renewAll(now)
			l.fleet.Topology.RenewAll(now)
		}
		if err := l.tick(ctx, now, min(elapsed, maxTick)); err != nil && ctx.Err() == nil {
			l.Log.Warn("a tick failed", "err", err)
		}
	}
}

// tick advances cluster time by one step.
func (l *leader) tick(ctx context.Context, now time.Time, elapsed time.Duration) error {
	tick := &statepb.Tick{Millis: uint64(elapsed.Milliseconds()), Mark: true}
	err := l.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		tick.Compare, err = fleet.SumMark(l.Machine.View(r))
		return err
	})
	if err != nil {
		return err
	}
	doubt := l.proposer.doubt.Swap(false) // a failed tick sets it again
	if _, err := l.Command(ctx, &statepb.Command{Op: &statepb.Command_Tick{Tick: tick}}); err != nil {
		if doubt {
			l.proposer.doubt.Store(true)
		}
		return err
	}
	l.Metrics.Ticks.Inc()
	if doubt {
		if err := l.catchUp(); err != nil {
			l.proposer.doubt.Store(true)
			return err
		}
	}
	for _, due := range []func(context.Context, time.Time) error{l.endRevoked, l.desk.endStrayed, l.desk.endOverdue, l.desk.endLingers, l.measure, l.fleet.JudgeHosts, l.fleet.JudgeSlow, l.jobs.abortSilentSteps, l.members.TendMembers} {
		if err := due(ctx, now); err != nil {
			return err
		}
	}
	l.Metrics.Sessions.Set(float64(l.sessions.count()))
	l.backups.measureBackups()
	if _, err := l.server.backups.sweep(now); err != nil {
		l.Log.Warn("could not close the snapshot of a backup that nobody reads", "err", err)
	}
	if err := l.fleet.Horizon.MeasureKept(); err != nil {
		return err
	}
	l.lease.Sweep()
	return l.keys.rotateKey(ctx)
}
