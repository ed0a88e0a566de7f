package object

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the collectors of a bucket's client.
type Metrics struct {
	Requests *prometheus.CounterVec   // by op and outcome: ok, or the kind of error
	Seconds  *prometheus.HistogramVec // by op
	Sent     prometheus.Counter       // bytes of parts that the store accepted
	Received prometheus.Counter       // bytes of objects read
}

// NewMetrics makes the collectors, and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_object_requests_total",
			Help: "Requests to the bucket, by operation and outcome."}, []string{"op", "outcome"}),
		Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "moraine_object_request_seconds",
			Help: "Time of a request to the bucket, with its bytes, by operation.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}, []string{"op"}),
		Sent: prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_object_sent_bytes_total",
			Help: "Bytes of parts that the bucket accepted."}),
		Received: prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_object_received_bytes_total",
			Help: "Bytes of objects read from the bucket."}),
	}
	if reg != nil {
		reg.MustRegister(m.Requests, m.Seconds, m.Sent, m.Received)
	}
	return m
}
