package fuse

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/morainefs/moraine/fuse/observe"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
)

// Metrics counts what mounts do. Several mounts of one process may share it.
type Metrics struct {
	// WaitsExceeded counts the calls that failed since a limited resource of the
	// mount did not become free in time.
	WaitsExceeded *prometheus.CounterVec
	// Reads counts the kernel's requests to read.
	Reads prometheus.Counter
	// Prefetched counts the bytes that the mount has read ahead of files that it prefetches.
	Prefetched prometheus.Counter
	// AtimesDropped counts the reads whose time was not recorded.
	AtimesDropped prometheus.Counter
	restarts      prometheus.Counter
	operations    *observe.Metrics
}

// NewMetrics makes the metrics and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	return &Metrics{WaitsExceeded: limit.NewMetrics(reg, "fuse"),
		Reads:         metric.For(reg, "fuse").Counter("reads_total", "Read requests of the kernel. It sends none for bytes that it has in its pages."),
		Prefetched:    metric.For(reg, "fuse").Counter("prefetched_bytes_total", "Bytes of files that the mount read whole because a program opened them (--prefetch)."),
		AtimesDropped: metric.For(reg, "fuse").Counter("atimes_dropped_total", "Reads that would raise the atime of a file, and whose time the mount did not record: too many at once, or a request failed."),
		restarts:      metric.For(reg, "fuse").Counter("restarts_total", "Daemons of the mount before this one, which crashed or were upgraded."),
		operations:    observe.NewMetrics(reg)}
}
