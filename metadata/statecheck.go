package metadata

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// The scrub of the metadata. From time to time the leader reads its whole state
// and verifies the records against each other, and the running sum against all
// pairs. The sum that servers compare follows writes. A change without a write,
// by a bad core or bad memory, is found only by a pass over everything. The
// pass reads one consistent state beside all other work, and uses a part of one
// processor.

const (
	// checkShare is the part of the time that a check works; it sleeps the rest.
	checkShare = 0.25
	// checkPairs is the number of pairs between two looks at the clock.
	checkPairs = 256
	// checkRetry is the pause after a check that failed.
	checkRetry = time.Minute
	// checkRecords bounds the inodes and stripes of a state whose records are verified in memory,
	// some 400 bytes each. For a larger state only the running sum is checked; `moraine fsck
	// --metadata` can do the rest elsewhere.
	checkRecords = 1 << 20
	// checkFound is the largest number of problems reported.
	checkFound = 5
)

// stateChecks has the results of this server's checks. It outlives a leadership.
type stateChecks struct {
	mu       sync.Mutex // guards the following fields
	ended    time.Time  // end of the last check; zero: none
	took     time.Duration
	problems []string
	err      error // why a later one failed
}

// checkStates checks at once, and then every CheckEvery, until ctx ends.
func (k *stateChecker) checkStates(ctx context.Context) {
	for k.cfg.CheckEvery > 0 && ctx.Err() == nil {
		wait := k.cfg.CheckEvery
		c := k.checks
		c.mu.Lock()
		last := c.ended
		c.mu.Unlock()
		if !last.IsZero() && k.Clock.Since(last) < k.cfg.CheckEvery {
			wait -= k.Clock.Since(last)
		} else if !k.checkOnce(ctx) {
			wait = min(checkRetry, wait)
		}
		k.measureCheck()
		lead.Sleep(ctx, k.Clock, wait)
	}
}

// checkOnce makes one check, and reports whether it finished.
func (k *stateChecker) checkOnce(ctx context.Context) bool {
	began := k.Clock.Now()
	var problems []string
	whole := false
	err := k.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		problems, whole, err = check.CheckWithin(k.Machine.View(&pacedReader{Reader: r, ctx: ctx, clock: k.Clock, began: began}), checkRecords)
		return err
	})
	if ctx.Err() != nil {
		return false
	}
	if moraine.KindOf(err) == moraine.Corrupt {
		problems, err = append(problems, err.Error()), nil
	}
	took := k.Clock.Since(began)
	c := k.checks
	c.mu.Lock()
	if c.err = err; err == nil {
		c.ended, c.took, c.problems = k.Clock.Now(), took, problems
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		k.Log.Warn("could not check the metadata; trying again", "err", err)
	case len(problems) > 0:
		k.Log.Error("the check of the metadata found inconsistent records", "problems", len(problems), "first", problems[0])
	default:
		k.Log.Info("checked the metadata", "took", took, "whole", whole)
	}
	return err == nil
}

// stateCheck describes the checks.
func (k *stateChecker) stateCheck() *wire.StateCheck {
	w := &wire.StateCheck{Enabled: k.cfg.CheckEvery > 0}
	c := k.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	now := k.Clock.Now()
	if w.Done = !c.ended.IsZero(); w.Done {
		age := now.Sub(c.ended)
		w.AgeMillis, w.TookMillis = uint64(age.Milliseconds()), uint64(c.took.Milliseconds())
		w.Overdue = w.Enabled && age > 2*k.cfg.CheckEvery && now.Sub(k.Began) > k.cfg.CheckEvery
	}
	w.Problems = uint32(len(c.problems))
	for _, p := range c.problems[:min(len(c.problems), checkFound)] {
		w.Found = append(w.Found, wire.Text(p, fleet.MaxProbeError))
	}
	if c.err != nil {
		w.Error = wire.Text(c.err.Error(), wire.MaxText)
	}
	return w
}

func (k *stateChecker) measureCheck() {
	w := k.stateCheck()
	if !w.Done {
		return
	}
	k.Metrics.CheckProblems.Set(float64(w.Problems))
	k.Metrics.CheckAge.Set(float64(w.AgeMillis) / 1000)
}

// pacedReader is a Reader that uses a part of the time, and fails when ctx has ended.
type pacedReader struct {
	kvtx.Reader
	ctx   context.Context
	clock clock.Clock
	began time.Time // start of the work since the last pause
	pairs int
}

// Get implements kvtx.Reader.
func (p *pacedReader) Get(key []byte) ([]byte, bool, error) {
	if err := p.pace(); err != nil {
		return nil, false, err
	}
	return p.Reader.Get(key)
}

// Scan implements kvtx.Reader.
func (p *pacedReader) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	var bad error
	err := p.Reader.Scan(lo, hi, func(key, value []byte) bool {
		if bad = p.pace(); bad != nil {
			return false
		}
		return fn(key, value)
	})
	if bad != nil {
		return bad
	}
	return err
}

func (p *pacedReader) pace() error {
	if p.pairs++; p.pairs%checkPairs != 0 {
		return nil
	}
	if p.ctx.Err() != nil {
		return fmt.Errorf("the check ended early: %w", p.ctx.Err())
	}
	if worked := p.clock.Since(p.began); worked > time.Millisecond {
		lead.Sleep(p.ctx, p.clock, time.Duration(float64(worked)*(1/checkShare-1)))
		p.began = p.clock.Now()
	}
	return nil
}

// stateChecker checks the whole state periodically while this server leads.
type stateChecker struct {
	*lead.Term
	cfg    *Config
	checks *stateChecks
}
