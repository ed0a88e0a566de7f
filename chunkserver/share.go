package chunkserver

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/morainefs/moraine"
)

const (
	// clientShare is the divisor of BackgroundBytesPerSecond beside clients.
	clientShare = 8
	// lowPart is the share of low-priority work relative to that of repairs, and in
	// addition to it.
	lowPart = 0.25
	// clientAway is how long after a client's last request its share stays
	// reserved.
	clientAway = 10 * time.Second
	// shareWait limits the wait of one request: its sender gives up on a server
	// that does not answer for 10 s. After that time the request proceeds, and the
	// limiter does not count it.
	shareWait = 4 * time.Second
)

// The limits that a request of another chunkserver's mover can pass. They are label
// values of moraine_chunkserver_background_bytes_total.
const (
	boundUrgent  = "urgent"  // no limit: its stripe has no redundancy left
	boundAlone   = "alone"   // the whole share
	boundClients = "clients" // the reduced share beside clients
)

// priority is the priority that a mover gives a request.
type priority int

const (
	priorityRepair priority = iota
	priorityLow             // a move without a waiting client
	priorityUrgent          // a repair of a stripe that has no redundancy left
)

type prioritized interface {
	GetLowPriority() bool
	GetUrgent() bool
}

func priorityOf(req prioritized) priority {
	switch {
	case req.GetUrgent():
		return priorityUrgent
	case req.GetLowPriority():
		return priorityLow
	}
	return priorityRepair
}

// backgroundShare limits the requests of other chunkservers' movers to a fixed rate
// of bytes, and to a clientShare-th of it while clients use this server. Repairs
// and low-priority work have a queue each, so that a repair never waits behind a
// flush.
type backgroundShare struct {
	whole       float64 // bytes per second
	repair, low *shareLine

	mu     sync.Mutex // guards the fields below
	client time.Time  // time of a client's last request
	beside bool       // the limiters are set for the presence of clients
}

// shareLine lets requests take their bytes of a limiter one after the other. A
// request that is cancelled in the queue has taken nothing.
type shareLine struct {
	part    float64 // share of the rate
	limiter *rate.Limiter
	turn    chan struct{} // capacity 1
}

func newShareLine(whole, part float64) *shareLine {
	return &shareLine{part: part, limiter: rate.NewLimiter(rate.Limit(whole*part), moraine.MaxChunkSize), turn: make(chan struct{}, 1)}
}

func newBackgroundShare(bytesPerSecond int64) *backgroundShare {
	whole := float64(bytesPerSecond)
	return &backgroundShare{whole: whole, repair: newShareLine(whole, 1), low: newShareLine(whole, lowPart)}
}

func (s *backgroundShare) line(p priority) *shareLine {
	if p == priorityLow {
		return s.low
	}
	return s.repair
}

// noteClient notes a client's request.
func (s *backgroundShare) noteClient(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client = now
	s.setBeside(now, true)
}

// bound returns which limit a request passes now.
func (s *backgroundShare) bound(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setBeside(now, !s.client.IsZero() && now.Sub(s.client) < clientAway)
	if s.beside {
		return boundClients
	}
	return boundAlone
}

// setBeside sets the limiters for the presence or absence of clients. The caller holds mu.
func (s *backgroundShare) setBeside(now time.Time, beside bool) {
	if s.beside == beside {
		return
	}
	s.beside = beside
	have := s.whole
	if beside {
		have /= clientShare
	}
	for _, l := range []*shareLine{s.repair, s.low} {
		l.limiter.SetLimitAt(now, rate.Limit(have*l.part))
	}
}

// admitBackground waits until a request of another chunkserver's mover may be
// served. waited is how long the request has already waited at other limits.
func (n *Neighbour) admitBackground(ctx context.Context, bytes int, waited time.Duration, p priority) error {
	bound := boundUrgent
	if p != priorityUrgent {
		bound = n.share.bound(n.deps.Clock.Now())
		if err := n.waitInLine(ctx, n.share.line(p), bytes, shareWait-waited); err != nil {
			return err
		}
	}
	n.deps.Metrics.BackgroundBytes.WithLabelValues(bound).Add(float64(bytes))
	return nil
}

// waitInLine waits for its turn and takes bytes of a queue's limiter. After the time
// most it stops waiting: the request proceeds, and the limiter does not count it.
func (n *Neighbour) waitInLine(ctx context.Context, l *shareLine, bytes int, most time.Duration) error {
	due := n.deps.Clock.Now().Add(max(most, 0))
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	default:
		n.deps.Metrics.HeldBack.WithLabelValues("share").Inc()
		select {
		case l.turn <- struct{}{}:
			defer func() { <-l.turn }()
		case <-n.deps.Clock.After(max(most, 0)):
			return ctx.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := n.deps.Clock.Now()
	r := l.limiter.ReserveN(now, min(bytes, moraine.MaxChunkSize))
	wait, left := r.DelayFrom(now), due.Sub(now)
	if wait > left {
		r.CancelAt(now)
		return n.sleep(ctx, left)
	}
	err := n.hold(ctx, "share", wait)
	if err != nil {
		r.CancelAt(n.deps.Clock.Now())
	}
	return err
}
