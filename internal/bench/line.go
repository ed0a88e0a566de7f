// Package bench measures Moraine on the machine that it runs on: each figure
// with the physical limit of the same run beside it, their ratio, and what it
// cost in CPU, device bytes and syncs. docs/BENCHMARKS.md says how each is
// measured.
//
// A benchmark starts a cluster of processes (package devcluster) unless it is given
// one, does its work through package client as a user would, and returns Lines.
// It never asserts a speed; the one thing it refuses is a record that cannot be
// true (a durable write that moved too few bytes to its devices).
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
	// Limit is the physical limit (or the reference) of the same run, in Unit,
	// and LimitName what it is. 0 where there is none.
	Limit     float64 `json:"limit"`
	LimitName string  `json:"limit_name"`
	// Ratio is Value/Limit.
	Ratio float64 `json:"ratio"`
	// CPU is in CPU seconds per GB (1e9 bytes) moved, of all processes of the
	// cluster and of the benchmark; for operations it is CPU seconds per
	// million of them (then Unit is "ops/s").
	CPU float64 `json:"cpu_s_per_gb"`
	// DeviceBytes were moved by the disk that holds the cluster during the
	// measurement (written for a write, read for a read), by /proc/diskstats.
	DeviceBytes uint64 `json:"device_bytes"`
	// Syncs is how many fdatasync calls the servers made during it.
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

// gb is the unit of rates: 1e9 bytes, as disks and networks are sold.
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
