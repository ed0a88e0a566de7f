package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/metadata/state"
)

const (
	// maxEndedCounted bounds the count of ended grants, and endedEvery is how often the metric
	// is brought up to date.
	maxEndedCounted = 100_000
	endedEvery      = 10 * time.Second
)

// measure sets the metrics of the state that change by the passing of time. It is part of a
// tick.
func (l *leader) measure(context.Context, time.Time) error {
	l.checks.measureCheck()
	if l.endedCounted.IsZero() || l.Clock.Now().Sub(l.endedCounted) >= endedEvery {
		l.endedCounted = l.Clock.Now()
		_ = l.Store.View(func(r state.Reader, _ uint64) error {
			n, err := l.Machine.EndedGrants(r, maxEndedCounted)
			l.Metrics.EndedGrants.Set(float64(n))
			return err
		})
	}
	return nil
}
