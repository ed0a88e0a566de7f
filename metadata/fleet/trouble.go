package fleet

import (
	"maps"
	"time"
)

// countTrouble sets the metrics of buckets and hosts that do not answer.
func (f *Fleet) countTrouble(v *View) {
	m, now := f.Metrics, f.Clock.Now()
	failing := 0
	for _, b := range f.bucketHealths.status(v, now) {
		if b.Failed > 0 {
			failing++
		}
	}
	m.FailingBuckets.Set(float64(failing))
	m.UnreachableHosts.Set(float64(len(v.avoided)))
}

// avoidUnreachable makes placement avoid hosts that their peers cannot reach.
func (f *Fleet) avoidUnreachable(v *View, now time.Time) {
	hosts := f.endpoints.unreachable(v, now)
	if maps.Equal(hosts, v.avoided) {
		return
	}
	for id := range hosts {
		if !v.avoided[id] {
			f.Log.Warn("other hosts cannot connect to a host: the leader places nothing new on it", "host", id)
		}
	}
	for id := range v.avoided {
		if !hosts[id] {
			f.Log.Info("other hosts can connect to a host again", "host", id)
		}
	}
	f.Topology.avoid(hosts)
}
