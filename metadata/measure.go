package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

const (
	// maxEndedCounted bounds the count of ended grants, and endedEvery is how often the metric is
	// updated.
	maxEndedCounted = 100_000
	endedEvery      = 10 * time.Second
)

// measure sets the metrics of the state that change with time. Each tick calls it.
func (l *leader) measure(context.Context, time.Time) error {
	l.checks.measureCheck()
	if l.endedCounted.IsZero() || l.Clock.Now().Sub(l.endedCounted) >= endedEvery {
		l.endedCounted = l.Clock.Now()
		_ = l.Store.View(func(r kvtx.Reader, _ uint64) error {
			n, err := fleet.EndedGrants(l.Machine.View(r), maxEndedCounted)
			l.Metrics.EndedGrants.Set(float64(n))
			return err
		})
	}
	return nil
}
