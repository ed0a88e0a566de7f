package mover

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
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
	f := metric.For(reg, "mover")
	return &Metrics{
		WaitsExceeded:  limit.NewMetrics(reg, "mover"),
		Jobs:           f.Counters("jobs_total", "Leased jobs that ended here, by kind and outcome.", "kind", "outcome"),
		JobSeconds:     f.Histograms("job_seconds", "Time from lease to end of a job, by kind.", prometheus.ExponentialBuckets(0.01, 3, 10), "kind"),
		Running:        f.Gauge("running_jobs", "Jobs being worked on."),
		LeasesLost:     f.Counter("leases_lost_total", "Jobs stopped because their lease was lost."),
		ChunksRepaired: f.Counter("repaired_chunks_total", "Chunks rebuilt and committed on a new device."),
		BytesRepaired:  f.Counter("repaired_bytes_total", "Bytes of chunks rebuilt and committed on a new device."),
		StripesStale:   f.Counter("stale_stripes_total", "Stripes that had changed or died before their repair was committed."),
		ChunkErrors:    f.Counters("chunk_errors_total", "Chunks that could not be rebuilt or put, by kind of error.", "kind"),
		FilesFlushed:   f.Counter("flushed_files_total", "Files whose content was uploaded to the bucket and recorded."),
		BytesFlushed:   f.Counter("flushed_bytes_total", "Bytes of files uploaded to the bucket."),
		BytesReadBack:  f.Counter("read_back_bytes_total", "Bytes of objects read back from the bucket to be compared with what was sent."),
		BytesStaged:    f.Counter("staged_bytes_total", "Bytes of files that staging has processed."),
		BytesRewritten: f.Counter("rewritten_bytes_total", "Bytes of files moved from mostly dead or small stripes into new ones."),
		FilesPacked:    f.Counter("packed_files_total", "Small files that were packed with others into one stripe."),
		ObjectsDeleted: f.Counter("deleted_objects_total", "Objects deleted from the bucket because nothing refers to them."),
		RateWaits:      f.Counter("rate_waits_total", "Chunks that waited for the bound on bytes a second."),
	}
}
