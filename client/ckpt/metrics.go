package ckpt

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the work of saves. Several runs of one process may share it.
type Metrics struct {
	WaitsExceeded *prometheus.CounterVec // saves that failed for want of staging memory, by resource
	StallSeconds  prometheus.Histogram   // of one save: how long the trainer stood still
	WriteSeconds  prometheus.Histogram   // of one part: from Seal until the service has sealed it
	PartsSealed   prometheus.Counter
	PartsFailed   *prometheus.CounterVec // by kind
	PartRetries   prometheus.Counter
	StagedBytes   prometheus.Counter
	StagingMapped prometheus.Gauge   // bytes of staging memory
	StagingWaits  prometheus.Counter // tensors that waited for staging memory
}

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_ckpt_" + name, Help: help})
	}
	seconds := func(name, help string, first float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "moraine_ckpt_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, 2.5, 12)})
	}
	m := &Metrics{
		WaitsExceeded: limit.NewMetrics(reg, "ckpt"),
		StallSeconds:  seconds("stall_seconds", "How long a trainer stood still for one save.", 0.001),
		WriteSeconds:  seconds("write_seconds", "Time from a part's seal until it was durable in the cluster.", 0.01),
		PartsSealed:   counter("sealed_parts_total", "Parts that are durable and sealed in the cluster."),
		PartsFailed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_ckpt_failed_parts_total",
			Help: "Parts that were given up, by kind of error."}, []string{"kind"}),
		PartRetries: counter("part_retries_total", "Times that a part was written again from its start."),
		StagedBytes: counter("staged_bytes_total", "Bytes copied into staging memory."),
		StagingMapped: prometheus.NewGauge(prometheus.GaugeOpts{Name: "moraine_ckpt_staging_bytes",
			Help: "Staging memory that is mapped."}),
		StagingWaits: counter("staging_waits_total", "Times that a save waited for staging memory."),
	}
	if reg != nil {
		reg.MustRegister(m.StallSeconds, m.WriteSeconds, m.PartsSealed, m.PartsFailed, m.PartRetries,
			m.StagedBytes, m.StagingMapped, m.StagingWaits)
	}
	return m
}
