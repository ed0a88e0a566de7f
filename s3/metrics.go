package s3

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/morainefs/moraine/internal/metric"
)

// Metrics counts what the endpoint does with objects.
type Metrics struct {
	PutBytes prometheus.Counter     // of objects and parts, committed
	GetBytes prometheus.Counter     // handed to sockets
	Errors   *prometheus.CounterVec // errors of the cluster, by kind
}

// NewMetrics makes the metrics and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "s3")
	return &Metrics{
		PutBytes: f.Counter("put_bytes_total", "Bytes of objects and parts that were put and committed."),
		GetBytes: f.Counter("get_bytes_total", "Bytes of objects sent to clients."),
		Errors:   f.Counters("errors_total", "Requests that failed in the cluster, by kind of error; clients that made no progress count as `timed out`.", "kind"),
	}
}
