// Package limit limits how long a caller waits for a limited resource: memory,
// slots of a connection, buffers. If the resource does not become free within the
// caller's patience, the result is an error, a log line and a count, never a hang.
//
// One path through it: Semaphore.Acquire finds no free unit. Resource.Wait waits,
// at most for ctx and Resource.Patience. Reporter counts the failure and logs
// `resource wait exceeded`, at most once per resource and logInterval. The caller
// gets a *moraine.Error of kind Timeout that names the resource.
package limit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/metric"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

// logInterval is the least time between two log lines about one resource.
const logInterval = 10 * time.Second

// Reporter counts and logs waits that exceeded their patience. Its methods may be
// called concurrently. A nil Reporter reports nothing.
type Reporter struct {
	log      *slog.Logger
	exceeded *prometheus.CounterVec

	mu    sync.Mutex // guards quiet
	quiet map[string]*quiet
}

// quiet counts the log lines about one resource that were suppressed since the last written one.
type quiet struct {
	since      time.Time
	suppressed int
}

// NewMetrics makes the counter of waits that exceeded their patience, by resource,
// named moraine_<part>_resource_waits_exceeded_total. It registers the counter with
// reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer, part string) *prometheus.CounterVec {
	return metric.For(reg, part).Counters("resource_waits_exceeded_total",
		"Calls that failed because a limited resource did not become free in time, by resource.", "resource")
}

// NewReporter returns a Reporter. Both arguments may be nil.
func NewReporter(log *slog.Logger, exceeded *prometheus.CounterVec) *Reporter {
	return &Reporter{log: log, exceeded: exceeded, quiet: map[string]*quiet{}}
}

// Exceeded counts a failed wait for the named resource, which took waited, and logs
// it. resource is a constant: it is a label of the metric.
func (r *Reporter) Exceeded(resource string, waited time.Duration) {
	if r == nil {
		return
	}
	if r.exceeded != nil {
		r.exceeded.WithLabelValues(resource).Inc()
	}
	if r.log == nil {
		return
	}
	if suppressed, ok := r.mayLog(resource, time.Now()); ok {
		r.log.Warn("resource wait exceeded", "resource", resource, "waited", waited, "suppressed", suppressed)
	}
}

// mayLog reports whether a log line about the resource is due, and how many were
// suppressed since the last.
func (r *Reporter) mayLog(resource string, now time.Time) (suppressed int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.quiet[resource]
	switch {
	case q == nil:
		r.quiet[resource] = &quiet{since: now}
		return 0, true
	case now.Sub(q.since) < logInterval:
		q.suppressed++
		return 0, false
	}
	suppressed = q.suppressed
	*q = quiet{since: now}
	return suppressed, true
}

// Resource is a limited resource that callers wait for.
type Resource struct {
	// Name is a constant of a few words for the error, the log line and the metric.
	Name string
	// Patience limits each wait, in addition to the caller's context. 0: only the
	// context.
	Patience time.Duration
	// Advice says what an operator can do; it ends the error. May be empty.
	Advice string
	// Reports receives the waits that exceeded their patience. May be nil.
	Reports *Reporter
}

// Wait calls wait with a context that ends with ctx or with the patience, and
// returns nil if wait does. wait returns an error only if its context has
// ended. The error is Timeout if the patience or the deadline of ctx has
// passed, which is reported. It is Canceled if the caller cancelled, which is
// not. It is the cause of ctx if that is a *moraine.Error.
func (r *Resource) Wait(ctx context.Context, wait func(context.Context) error) error {
	began := time.Now()
	bounded := ctx
	if r.Patience > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, r.Patience)
		defer cancel()
	}
	if wait(bounded) == nil {
		return nil
	}
	return r.GaveUp(ctx, time.Since(began))
}

// Enter puts an element into slots, which bound the resource, and waits for room as Wait does.
func (r *Resource) Enter(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	return r.Wait(ctx, func(ctx context.Context) error {
		select {
		case slots <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// GaveUp returns the error of a wait that ended without the resource, as Wait does,
// and reports it. It is for waits that cannot use Wait.
func (r *Resource) GaveUp(ctx context.Context, waited time.Duration) error {
	if ctx.Err() != nil {
		var m *moraine.Error
		if cause := context.Cause(ctx); errors.As(cause, &m) {
			return cause
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return &moraine.Error{Op: "wait", Ref: r.Name, Kind: moraine.Canceled, Err: ctx.Err()}
		}
	}
	r.Reports.Exceeded(r.Name, waited)
	text := fmt.Sprintf("none became free within %v", waited.Round(time.Millisecond))
	if r.Advice != "" {
		text += ": " + r.Advice
	}
	return &moraine.Error{Op: "wait", Ref: r.Name, Kind: moraine.Timeout, Err: errors.New(text)}
}

// Semaphore limits the units of a resource that are in use. It serves waiting
// callers in order of arrival. Its methods may be called concurrently.
type Semaphore struct {
	Resource
	size  int64
	inUse atomic.Int64
	sem   *semaphore.Weighted
}

// NewSemaphore returns a Semaphore of size units.
func NewSemaphore(size int64, r Resource) *Semaphore {
	return &Semaphore{Resource: r, size: size, sem: semaphore.NewWeighted(size)}
}

// Acquire takes n units, and waits for them as Resource.Wait does. The caller
// returns them with Release. A request for more units than exist fails at once with
// TooLarge.
func (s *Semaphore) Acquire(ctx context.Context, n int64) error {
	if s.TryAcquire(n) {
		return nil
	}
	if n > s.size {
		return &moraine.Error{Op: "wait", Ref: s.Name, Kind: moraine.TooLarge, Err: fmt.Errorf("request for %d of %d units", n, s.size)}
	}
	if err := s.Wait(ctx, func(ctx context.Context) error { return s.sem.Acquire(ctx, n) }); err != nil {
		return err
	}
	s.inUse.Add(n)
	return nil
}

// TryAcquire takes n units if they are free and no caller waits.
func (s *Semaphore) TryAcquire(n int64) bool {
	if !s.sem.TryAcquire(n) {
		return false
	}
	s.inUse.Add(n)
	return true
}

// Release returns n units.
func (s *Semaphore) Release(n int64) {
	s.inUse.Add(-n)
	s.sem.Release(n)
}

// InUse returns how many units are taken.
func (s *Semaphore) InUse() int64 { return s.inUse.Load() }

// Size returns the number of units.
func (s *Semaphore) Size() int64 { return s.size }
