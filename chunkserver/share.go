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
	// lowPart is what work of low priority gets, of what repairs get, and beside them.
	lowPart = 0.25
	// clientAway is how long after the last request of a client its share is kept free.
	clientAway = 10 * time.Second
	// shareWait bounds the wait of one request: its sender gives a server up that does
	// not answer for 10 s. What would wait longer goes after that time, uncounted.
	shareWait = 4 * time.Second
)

// The bounds that a request of another chunkserver's mover can pass; they are label values
// of moraine_chunkserver_background_bytes_total.
const (
	boundUrgent  = "urgent"  // none: its stripe has no redundancy left
	boundAlone   = "alone"   // the whole share
	boundClients = "clients" // the part of it beside clients
)

// priority is what a mover says of a request.
type priority int

const (
	priorityRepair priority = iota
	priorityLow             // a move that nobody waits for
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

// backgroundShare bounds the requests of other chunkservers' movers: to a fixed rate of
// bytes, and to a clientShare-th of it while clients use this server. Repairs and work of
// low priority have a line each, so that a repair never waits behind a flush.
type backgroundShare struct {
	whole       float64 // bytes a second
	repair, low *shareLine

	mu     sync.Mutex // guards what follows
	client time.Time  // of the last request of one
	beside bool       // the limiters are set for clients
}

// shareLine lets one request after the other take its bytes of a limiter: a request that
// is given up in line has taken nothing.
type shareLine struct {
	part    float64 // of what there is
	limiter *rate.Limiter
	turn    chan struct{} // of one place
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

// bound returns which bound a request passes now.
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

// admitBackground waits until a request of another chunkserver's mover may be served, which
// has waited at other limits already.
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

// waitInLine takes bytes of a line's limiter. A request that would wait for longer than
// most goes on after that time, and takes none.
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
