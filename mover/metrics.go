package mover

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the work of a mover.
type Metrics struct {
	WaitsExceeded  *prometheus.CounterVec   // uploads that failed for want of memory, by resource
	Jobs           *prometheus.CounterVec   // by kind and outcome
	JobSeconds     *prometheus.HistogramVec // by kind
	Running        prometheus.Gauge
	LeasesLost     prometheus.Counter
	ChunksRepaired prometheus.Counter
	BytesRepaired  prometheus.Counter
	StripesStale   prometheus.Counter
	ChunkErrors    *prometheus.CounterVec // by kind
	RateWaits      prometheus.Counter
	FilesFlushed   prometheus.Counter
	BytesFlushed   prometheus.Counter
	BytesReadBack  prometheus.Counter
	BytesStaged    prometheus.Counter
	BytesRewritten prometheus.Counter
	FilesPacked    prometheus.Counter
	ObjectsDeleted prometheus.Counter
}

// Outcomes of a job, as Metrics.Jobs labels them.
const (
	outcomeDone   = "done"
	outcomeFailed = "failed"
	outcomeLost   = "lease lost"
)

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_mover_" + name, Help: help})
	}
	m := &Metrics{
		WaitsExceeded: limit.NewMetrics(reg, "mover"),
		Jobs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_mover_jobs_total",
			Help: "Leased jobs that ended here, by kind and outcome."}, []string{"kind", "outcome"}),
		JobSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "moraine_mover_job_seconds",
			Help: "Time from lease to end of a job, by kind.", Buckets: prometheus.ExponentialBuckets(0.01, 3, 10)}, []string{"kind"}),
		Running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "moraine_mover_running_jobs",
			Help: "Jobs being worked on."}),
		LeasesLost:     counter("leases_lost_total", "Jobs stopped because their lease was lost."),
		ChunksRepaired: counter("repaired_chunks_total", "Chunks rebuilt and committed on a new device."),
		BytesRepaired:  counter("repaired_bytes_total", "Bytes of chunks rebuilt and committed on a new device."),
		StripesStale:   counter("stale_stripes_total", "Stripes that had changed or died before their repair was committed."),
		ChunkErrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_mover_chunk_errors_total",
			Help: "Chunks that could not be rebuilt or put, by kind of error."}, []string{"kind"}),
		FilesFlushed:   counter("flushed_files_total", "Files whose content was uploaded to the bucket and recorded."),
		BytesFlushed:   counter("flushed_bytes_total", "Bytes of files uploaded to the bucket."),
		BytesReadBack:  counter("read_back_bytes_total", "Bytes of objects read back from the bucket to be compared with what was sent."),
		BytesStaged:    counter("staged_bytes_total", "Bytes of files gone through by staging."),
		BytesRewritten: counter("rewritten_bytes_total", "Bytes of files put out of stripes that were mostly dead, or small, into new ones."),
		FilesPacked:    counter("packed_files_total", "Small files that were packed with others into one stripe."),
		ObjectsDeleted: counter("deleted_objects_total", "Objects deleted from the bucket because nothing refers to them."),
		RateWaits:      counter("rate_waits_total", "Chunks that waited for the bound on bytes a second."),
	}
	if reg != nil {
		reg.MustRegister(m.Jobs, m.JobSeconds, m.Running, m.LeasesLost, m.ChunksRepaired, m.BytesRepaired,
			m.StripesStale, m.ChunkErrors, m.RateWaits,
			m.FilesFlushed, m.BytesFlushed, m.BytesReadBack, m.BytesStaged, m.BytesRewritten, m.FilesPacked, m.ObjectsDeleted)
	}
	return m
}
