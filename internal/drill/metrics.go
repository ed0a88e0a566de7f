// Package drill has the metrics of `moraine ckpt drill`, which restores the newest checkpoints of a run
// on a schedule. They are in a package of their own so that the test of docs/METRICS.md sees them.
package drill

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/morainefs/moraine/internal/metric"
)

// Result is what a drill found at one level.
type Result struct {
	Level string
	// Committed is when the newest good step of the level was committed; zero: the level has none, and the
	// other fields mean nothing.
	Committed time.Time
	// LostSteps and Lost are what a crash would have lost if only this level had survived it.
	LostSteps uint64
	Lost      time.Duration
	// Restored says that the step was restored: Bytes, in Took.
	Restored bool
	Bytes    int64
	Took     time.Duration
}

// Metrics are the metrics of the drills of one run: moraine_drill_*.
type Metrics struct {
	restoreSeconds, restoreBytes, commit, lostSteps, lostSeconds *prometheus.GaugeVec
	restores, failures                                           *prometheus.CounterVec
	broken                                                       prometheus.Counter
}

// NewMetrics makes the metrics and registers them with reg, if that is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "drill")
	return &Metrics{
		restoreSeconds: f.Gauges("restore_seconds", "How long the last restore of the newest step took, by level.", "level"),
		restoreBytes:   f.Gauges("restore_bytes", "Bytes of that restore, by level.", "level"),
		commit:         f.Gauges("last_commit_timestamp_seconds", "When the newest good step was committed, in seconds since the epoch, by level.", "level"),
		lostSteps:      f.Gauges("exposed_steps", "Steps that a crash would have lost at the last drill if only this level had survived it.", "level"),
		lostSeconds:    f.Gauges("exposed_seconds", "Time of work that a crash would have lost at the last drill if only this level had survived it.", "level"),
		restores:       f.Counters("restores_total", "Restores that succeeded, by level.", "level"),
		failures:       f.Counters("failed_restores_total", "Restores that failed, by level.", "level"),
		broken:         f.Counter("broken_total", "Drills that ended early because the steps of the run could not be read."),
	}
}

// Broken counts a drill that could not read the steps of the run.
func (m *Metrics) Broken() { m.broken.Inc() }

// Set records the result of a drill at one level.
func (m *Metrics) Set(r Result) {
	if r.Committed.IsZero() {
		for _, g := range []*prometheus.GaugeVec{m.restoreSeconds, m.restoreBytes, m.commit, m.lostSteps, m.lostSeconds} {
			g.DeleteLabelValues(r.Level) // so that unknown does not read as 0
		}
		return
	}
	m.commit.WithLabelValues(r.Level).Set(float64(r.Committed.UnixNano()) / 1e9)
	m.lostSteps.WithLabelValues(r.Level).Set(float64(r.LostSteps))
	m.lostSeconds.WithLabelValues(r.Level).Set(r.Lost.Seconds())
	if !r.Restored {
		m.failures.WithLabelValues(r.Level).Inc()
		return
	}
	m.restores.WithLabelValues(r.Level).Inc()
	m.restoreSeconds.WithLabelValues(r.Level).Set(r.Took.Seconds())
	m.restoreBytes.WithLabelValues(r.Level).Set(float64(r.Bytes))
}
