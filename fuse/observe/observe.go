// Package observe counts and times the requests that the kernel sends to a mount, and writes an
// access log of them. It changes no request and no answer.
//
// One path through it: Wrap puts an Observer around a file system -> each of its methods passes the
// request on (names.go, files.go) and notes operation, bytes, result and duration -> the Observer
// counts it, for `moraine stats` (Snapshot) and for prometheus (Metrics), and passes it to the
// access log (log.go), if there is one.
package observe

import (
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the prometheus metrics of observed mounts. Several may share them.
type Metrics struct {
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
	bytes   *prometheus.CounterVec
}

// NewMetrics makes the metrics, and registers them with reg unless it is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "moraine_fuse_operation_seconds",
			Help: "Time from a request of the kernel to its answer, by operation.", Buckets: prometheus.ExponentialBuckets(16e-6, 4, 13)}, []string{"operation"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_fuse_operation_errors_total",
			Help: "Requests of the kernel answered with an error other than a missing name or attribute, by operation."}, []string{"operation"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_fuse_operation_bytes_total",
			Help: "Bytes that requests of the kernel read or wrote, by operation."}, []string{"operation"}),
	}
	if reg != nil {
		reg.MustRegister(m.seconds, m.errors, m.bytes)
	}
	return m
}

// Observer counts the requests of one mount.
type Observer struct {
	started time.Time
	counts  [operations]counts
	log     *AccessLog // nil: none
}

// New returns an Observer. log may be nil.
func New(m *Metrics, log *AccessLog) *Observer {
	if m == nil {
		m = NewMetrics(nil)
	}
	o := &Observer{started: time.Now(), log: log}
	for i := range o.counts {
		name := operation(i).String()
		o.counts[i].seconds = m.seconds.WithLabelValues(name)
		o.counts[i].failed = m.errors.WithLabelValues(name)
		o.counts[i].moved = m.bytes.WithLabelValues(name)
	}
	return o
}

// counts are those of one operation.
type counts struct {
	count, errors, bytes, nanos atomic.Uint64
	buckets                     [buckets]atomic.Uint64

	seconds       prometheus.Observer
	failed, moved prometheus.Counter
}

// call is one request.
type call struct {
	op    operation
	start time.Time
	// in is the server's, which uses it again after the answer.
	in    *gofuse.InHeader
	name  string
	bytes int
}

// end notes the result of a request.
func (o *Observer) end(c call, s gofuse.Status) {
	took := time.Since(c.start)
	n := &o.counts[c.op]
	n.count.Add(1)
	n.nanos.Add(uint64(took))
	n.buckets[bucketOf(took)].Add(1)
	n.seconds.Observe(took.Seconds())
	if c.bytes > 0 {
		n.bytes.Add(uint64(c.bytes))
		n.moved.Add(float64(c.bytes))
	}
	if s != gofuse.OK && !missing(c.op, s) {
		n.errors.Add(1)
		n.failed.Inc()
	}
	if o.log != nil {
		o.log.add(c, s, took)
	}
}

// missing reports whether a request looked for a name or an attribute that does not exist. Programs do
// that all the time.
func missing(op operation, s gofuse.Status) bool {
	return s == gofuse.ENOENT || s == gofuse.ENODATA || s == gofuse.ENOSYS || op == opGetXAttr && s == gofuse.ENOTSUP
}

// Wrap returns a file system that passes each request on to fs, and notes it.
func Wrap(fs gofuse.RawFileSystem, o *Observer) gofuse.RawFileSystem {
	return &observed{RawFileSystem: fs, o: o}
}

// observed passes on what is no request of a program (Forget, Init) through the embedded interface.
type observed struct {
	gofuse.RawFileSystem
	o *Observer
}
