// Package bench measures Moraine on this machine. Each figure comes with the
// physical limit of the same run, their ratio, and its cost in CPU, device bytes
// and syncs. docs/BENCHMARKS.md says how each is measured.
//
// One path through it: a benchmark such as Write starts a cluster of processes
// (package devcluster) unless it gets one. It works through package client as a user
// would, and returns Lines. It never asserts a speed. It only refuses a figure that
// cannot be true (a durable write that moved too few bytes to its devices).
package bench

import (
	"slices"
	"time"
)

// Line is one measured figure.
type Line struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Limit is the physical limit (or the reference) of the same run, in Unit, and
	// LimitName its name. 0 if there is none.
	Limit     float64 `json:"limit"`
	LimitName string  `json:"limit_name"`
	// Ratio is Value/Limit.
	Ratio float64 `json:"ratio"`
	// CPU is in CPU seconds per GB (1e9 bytes) moved, of all processes of the
	// cluster and of the benchmark. For operations it is CPU seconds per million of
	// them (then Unit is "ops/s").
	CPU float64 `json:"cpu_s_per_gb"`
	// DeviceBytes were moved by the cluster's disk during the measurement (written
	// for a write, read for a read), by /proc/diskstats.
	DeviceBytes uint64 `json:"device_bytes"`
	// Syncs is how many fdatasync calls the servers made meanwhile.
	Syncs uint64 `json:"syncs"`
}

// against sets the limit and the ratio.
func (l Line) against(limit float64, name string) Line {
	l.Limit, l.LimitName = limit, name
	if limit > 0 {
		l.Ratio = l.Value / limit
	}
	return l
}

// perSecond returns n per second of d.
func perSecond(n float64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return n / d.Seconds()
}

// gb is the unit of rates: 1e9 bytes, as for disks and networks.
const gb = 1e9

// median returns the middle value; values is not changed.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Clone(values)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
