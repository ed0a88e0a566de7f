package ckpt

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the work of saves. Several runs of one process may share it.
type Metrics struct {
	WaitsExceeded *prometheus.CounterVec // saves that failed for want of staging memory, by resource
	StallSeconds  prometheus.Histogram   // of one save: how long the trainer stood still
	WriteSeconds  prometheus.Histogram   // of one part: from Seal until the service has sealed it
	PartsSealed   prometheus.Counter
	PartsFailed   *prometheus.CounterVec // by kind
	SavesFailed   *prometheus.CounterVec // by kind
	PartRetries   prometheus.Counter
	StagedBytes   prometheus.Counter
	StagingMapped prometheus.Gauge   // bytes of staging memory
	StagingWaits  prometheus.Counter // tensors that waited for staging memory
}

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "ckpt")
	return &Metrics{
		WaitsExceeded: limit.NewMetrics(reg, "ckpt"),
		StallSeconds:  f.Histogram("stall_seconds", "How long a trainer waited for one save.", 0.001, 2.5, 12),
		WriteSeconds:  f.Histogram("write_seconds", "Time from a part's seal until it was durable in the cluster.", 0.01, 2.5, 12),
		PartsSealed:   f.Counter("sealed_parts_total", "Parts that are durable and sealed in the cluster."),
		PartsFailed:   f.Counters("failed_parts_total", "Parts that the client aborted, by kind of error.", "kind"),
		SavesFailed:   f.Counters("failed_saves_total", "Saves whose step will never be committed, as far as the run has found out, by kind of error.", "kind"),
		PartRetries:   f.Counter("part_retries_total", "Times that a part was written again from its start."),
		StagedBytes:   f.Counter("staged_bytes_total", "Bytes copied into staging memory."),
		StagingMapped: f.Gauge("staging_bytes", "Staging memory that is mapped."),
		StagingWaits:  f.Counter("staging_waits_total", "Times that a save waited for staging memory."),
	}
}
