package transport

import (
	"crypto/x509"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what a server or a pool does. One Metrics may serve both in a
// process: the label side separates them.
type Metrics struct {
	connections *prometheus.GaugeVec     // side, class, network
	requests    *prometheus.CounterVec   // side, kind, outcome
	seconds     *prometheus.HistogramVec // side, kind
	inFlight    *prometheus.GaugeVec     // side, class
	sent        *prometheus.CounterVec   // side, class
	received    *prometheus.CounterVec   // side, class
	dials       *prometheus.CounterVec   // outcome
	refused     *prometheus.CounterVec   // reason
	dead        *prometheus.CounterVec   // side
	limited     *prometheus.CounterVec   // side
	panics      prometheus.Counter
	// certificate is when the certificate of this process expires; there is none in
	// mode insecure.
	certificate *prometheus.GaugeVec
	// waitsExceeded counts the waits for slots that exceeded their limit.
	waitsExceeded *prometheus.CounterVec // resource

	sides [2]sideMetrics
}

type side int

const (
	sideClient side = iota
	sideServer
)

func (s side) String() string { return [...]string{"client", "server"}[s] }

func (c Class) String() string {
	switch c {
	case Control:
		return "control"
	case Bulk:
		return "bulk"
	case Raft:
		return "raft"
	}
	return "unknown"
}

// sideMetrics are the collectors of the hot path, looked up once.
type sideMetrics struct {
	seconds  [maxMetricKind]atomic.Pointer[prometheus.Observer]
	outcomes [maxMetricKind][maxMetricOutcome]atomic.Pointer[prometheus.Counter]
	inFlight [Raft + 1]prometheus.Gauge
}

const (
	maxMetricKind    = 64
	maxMetricOutcome = 64
)

// NewMetrics makes the collectors and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "transport")
	m := &Metrics{
		connections:   f.Gauges("connections", "Connections open.", "side", "class", "network"),
		requests:      f.Counters("requests_total", "Requests ended, by outcome.", "side", "kind", "outcome"),
		seconds:       f.Histograms("request_seconds", "Time from the start of a request to its end.", prometheus.ExponentialBuckets(20e-6, 2.5, 16), "side", "kind"),
		inFlight:      f.Gauges("in_flight_requests", "Running requests.", "side", "class"),
		sent:          f.Counters("sent_bytes_total", "Bytes sent.", "side", "class"),
		received:      f.Counters("received_bytes_total", "Bytes received.", "side", "class"),
		dials:         f.Counters("dials_total", "Connection attempts, by outcome.", "outcome"),
		refused:       f.Counters("refused_connections_total", "Connections that a server refused, by reason.", "reason"),
		dead:          f.Counters("dead_peers_total", "Connections closed because the peer was silent or stuck.", "side"),
		limited:       f.Counters("limit_waits_total", "Times that a request waited at a connection's limit for others to end.", "side"),
		panics:        f.Counter("handler_panics_total", "Handlers that panicked; each is a bug."),
		certificate:   f.Gauges("certificate_expiry_timestamp_seconds", "When the certificate of this process expires, in seconds since the epoch."),
		waitsExceeded: limit.NewMetrics(reg, "transport"),
	}
	for _, s := range []side{sideClient, sideServer} {
		for c := Control; c <= Raft; c++ {
			m.sides[s].inFlight[c] = m.inFlight.WithLabelValues(s.String(), c.String())
		}
	}
	return m
}

// done counts a request that ended after d with err.
func (m *Metrics) done(s side, k Kind, d time.Duration, err error) {
	i, o := 0, 0
	if k < maxMetricKind {
		i = int(k)
	}
	if err != nil {
		o = int(min(moraine.KindOf(err), maxMetricOutcome-2)) + 1
	}
	sm := &m.sides[s]
	h := sm.seconds[i].Load()
	if h == nil {
		v := m.seconds.WithLabelValues(s.String(), k.String())
		h = &v
		sm.seconds[i].Store(h)
	}
	(*h).Observe(d.Seconds())
	c := sm.outcomes[i][o].Load()
	if c == nil {
		v := m.requests.WithLabelValues(s.String(), k.String(), kindName(err))
		c = &v
		sm.outcomes[i][o].Store(c)
	}
	(*c).Inc()
}

// traffic adds the bytes that a connection counted since the last call to m. Two
// goroutines report: the periodic check and the end of the connection. Their reports
// may arrive in either order, so the one with the smaller count is the older one.
type traffic struct {
	mu             sync.Mutex // guards the fields below
	sent, received uint64
}

func (t *traffic) report(m *Metrics, s side, c Class, sent, received uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sent, received = max(sent, t.sent), max(received, t.received)
	m.sent.WithLabelValues(s.String(), c.String()).Add(float64(sent - t.sent))
	m.received.WithLabelValues(s.String(), c.String()).Add(float64(received - t.received))
	t.sent, t.received = sent, received
}

// expires sets when the certificate of the process expires.
func (m *Metrics) expires(leaf *x509.Certificate) {
	if leaf != nil {
		m.certificate.WithLabelValues().Set(float64(leaf.NotAfter.Unix()))
	}
}
