package s3

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what the endpoint does with objects.
type Metrics struct {
	PutBytes prometheus.Counter     // of objects and parts, committed
	GetBytes prometheus.Counter     // handed to sockets
	Errors   *prometheus.CounterVec // errors of the cluster, by kind
}

// NewMetrics makes the metrics and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		PutBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_s3_put_bytes_total", Help: "Bytes of objects and parts that were put and committed."}),
		GetBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_s3_get_bytes_total", Help: "Bytes of objects sent to clients."}),
		Errors:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_s3_errors_total", Help: "Requests that failed in the cluster, by kind of error; clients that made no progress count as `timed out`."}, []string{"kind"}),
	}
	if reg != nil {
		reg.MustRegister(m.PutBytes, m.GetBytes, m.Errors)
	}
	return m
}
