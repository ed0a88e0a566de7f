package metadata

import (
	"maps"
	"time"

	"github.com/morainefs/moraine/metadata/state"
)

const (
	// maxEndedCounted bounds the count of ended grants, and endedEvery is how often the metric
	// is brought up to date.
	maxEndedCounted = 100_000
	endedEvery      = 10 * time.Second
)

// countTrouble sets the metrics of what a leader hears of by the way. Only the tick calls it.
func (l *leader) countTrouble(v *topologyView) {
	m, now := l.Metrics, l.Clock.Now()
	failing := 0
	for _, b := range l.bucketHealths.status(v, now) {
		if b.Failed > 0 {
			failing++
		}
	}
	m.FailingBuckets.Set(float64(failing))
	m.UnreachableHosts.Set(float64(len(v.avoided)))
	l.measureCheck()
	if l.endedCounted.IsZero() || now.Sub(l.endedCounted) >= endedEvery {
		l.endedCounted = now
		_ = l.Store.View(func(r state.Reader, _ uint64) error {
			n, err := l.Machine.EndedGrants(r, maxEndedCounted)
			m.EndedGrants.Set(float64(n))
			return err
		})
	}
}

// avoidUnreachable has nothing new placed on hosts that their peers cannot reach.
func (l *leader) avoidUnreachable(v *topologyView, now time.Time) {
	hosts := l.endpoints.unreachable(v, now)
	if maps.Equal(hosts, v.avoided) {
		return
	}
	for id := range hosts {
		if !v.avoided[id] {
			l.Log.Warn("peers of a host get no connection to it: nothing new is placed on it", "host", id)
		}
	}
	for id := range v.avoided {
		if !hosts[id] {
			l.Log.Info("peers of a host reach it again", "host", id)
		}
	}
	l.topology.avoid(hosts)
}
