package object

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/morainefs/moraine/internal/metric"
)

// Metrics are the collectors of a bucket's client.
type Metrics struct {
	Requests *prometheus.CounterVec   // by op and outcome: ok, or the kind of error
	Seconds  *prometheus.HistogramVec // by op
	Sent     prometheus.Counter       // bytes of parts that the store accepted
	Received prometheus.Counter       // bytes of objects read
}

// NewMetrics makes the collectors, and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "object")
	return &Metrics{
		Requests: f.Counters("requests_total", "Requests to the bucket, by operation and outcome.", "op", "outcome"),
		Seconds:  f.Histograms("request_seconds", "Time of a request to the bucket, with its bytes, by operation.", prometheus.ExponentialBuckets(0.001, 2, 18), "op"),
		Sent:     f.Counter("sent_bytes_total", "Bytes of parts that the bucket accepted."),
		Received: f.Counter("received_bytes_total", "Bytes of objects read from the bucket."),
	}
}
