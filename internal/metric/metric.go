// Package metric makes the collectors of one part of Moraine. All are named moraine_<part>_*, and
// registered when they are made.
//
// One path through it: chunkserver.NewMetrics calls For with its part and the registry of the
// process, and then a method for each collector. The registry serves them at /metrics.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Maker makes the collectors of one part.
type Maker struct {
	auto   promauto.Factory
	prefix string
}

// For returns the maker of a part. It registers with reg unless reg is nil.
func For(reg prometheus.Registerer, part string) Maker {
	return Maker{promauto.With(reg), "moraine_" + part + "_"}
}

// Counter makes a counter.
func (m Maker) Counter(name, help string) prometheus.Counter {
	return m.auto.NewCounter(prometheus.CounterOpts{Name: m.prefix + name, Help: help})
}

// Counters makes counters by labels.
func (m Maker) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return m.auto.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + name, Help: help}, labels)
}

// Gauge makes a gauge.
func (m Maker) Gauge(name, help string) prometheus.Gauge {
	return m.auto.NewGauge(prometheus.GaugeOpts{Name: m.prefix + name, Help: help})
}

// Gauges makes gauges by labels.
func (m Maker) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return m.auto.NewGaugeVec(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}, labels)
}

// Histogram makes a histogram with n buckets. The first ends at start, and each
// further one at factor times the end of the one before.
func (m Maker) Histogram(name, help string, start, factor float64, n int) prometheus.Histogram {
	return m.HistogramOf(name, help, prometheus.ExponentialBuckets(start, factor, n))
}

// HistogramOf makes a histogram with the given ends of buckets.
func (m Maker) HistogramOf(name, help string, buckets []float64) prometheus.Histogram {
	return m.auto.NewHistogram(prometheus.HistogramOpts{Name: m.prefix + name, Help: help, Buckets: buckets})
}

// Histograms makes histograms by labels.
func (m Maker) Histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return m.auto.NewHistogramVec(prometheus.HistogramOpts{Name: m.prefix + name, Help: help, Buckets: buckets}, labels)
}
