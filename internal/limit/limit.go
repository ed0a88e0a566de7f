// Package limit bounds how long a caller waits for a bounded resource: memory,
// slots of a connection, buffers. A resource that does not come free within the
// caller's patience is an error, a log line and a count, never a hang.
//
// One path through it: Semaphore.Acquire finds no room -> Resource.Wait waits, no
// longer than ctx and Resource.Patience -> Reporter counts the failure and logs
// `resource wait exceeded`, at most once per resource and logInterval -> the caller
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

// quiet is what was not logged about one resource since the last line about it.
type quiet struct {
	since      time.Time
	suppressed int
}

// NewMetrics makes the counter of waits that exceeded their patience, by resource,
// named moraine_<part>_resource_waits_exceeded_total, and registers it with reg,
// which may be nil.
func NewMetrics(reg prometheus.Registerer, part string) *prometheus.CounterVec {
	exceeded := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_" + part + "_resource_waits_exceeded_total",
		Help: "Calls that failed because a bounded resource did not come free in time, by resource."}, []string{"resource"})
	if reg != nil {
		reg.MustRegister(exceeded)
	}
	return exceeded
}

// NewReporter returns a Reporter. Both arguments may be nil.
func NewReporter(log *slog.Logger, exceeded *prometheus.CounterVec) *Reporter {
	return &Reporter{log: log, exceeded: exceeded, quiet: map[string]*quiet{}}
}

// Exceeded counts a wait for the named resource that failed after waited, and logs it.
// resource is a constant: it is a label of the metric.
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

// mayLog reports whether a line about the resource is due, and how many were left out
// since the last.
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

// Resource is something bounded that callers wait for.
type Resource struct {
	// Name is a constant of a few words: it is in the error, the log line and the metric.
	Name string
	// Patience bounds each wait, beside the caller's context. 0: the context alone.
	Patience time.Duration
	// Advice says what an operator can do about it; it ends the error. May be empty.
	Advice string
	// Reports takes the waits that exceeded their patience. May be nil.
	Reports *Reporter
}

// Wait calls wait with a context that ends with ctx or with the patience, and returns
// nil where wait does. wait returns an error only when its context has ended. Errors:
// Timeout where the patience or the deadline of ctx has passed, which is reported;
// Canceled where the caller gave up, which is not; the cause of ctx where that is a
// *moraine.Error.
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

// GaveUp returns the error of a wait that ended without the resource, as Wait does, and
// reports it. It is for waits that Wait does not fit.
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
	text := fmt.Sprintf("none came free within %v", waited.Round(time.Millisecond))
	if r.Advice != "" {
		text += ": " + r.Advice
	}
	return &moraine.Error{Op: "wait", Ref: r.Name, Kind: moraine.Timeout, Err: errors.New(text)}
}

// Semaphore bounds the units of a resource that are in use. Those who wait are served
// in order of arrival. Its methods may be called concurrently.
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

// Acquire takes n units, and waits for them as Resource.Wait does. The caller gives them
// back by Release. More units than there are fail at once, with TooLarge.
func (s *Semaphore) Acquire(ctx context.Context, n int64) error {
	if s.TryAcquire(n) {
		return nil
	}
	if n > s.size {
		return &moraine.Error{Op: "wait", Ref: s.Name, Kind: moraine.TooLarge, Err: fmt.Errorf("%d of %d wanted", n, s.size)}
	}
	if err := s.Wait(ctx, func(ctx context.Context) error { return s.sem.Acquire(ctx, n) }); err != nil {
		return err
	}
	s.inUse.Add(n)
	return nil
}

// TryAcquire takes n units where they are free and nobody waits for any.
func (s *Semaphore) TryAcquire(n int64) bool {
	if !s.sem.TryAcquire(n) {
		return false
	}
	s.inUse.Add(n)
	return true
}

// Release gives n units back.
func (s *Semaphore) Release(n int64) {
	s.inUse.Add(-n)
	s.sem.Release(n)
}

// InUse returns how many units are taken now.
func (s *Semaphore) InUse() int64 { return s.inUse.Load() }

// Size returns how many units there are.
func (s *Semaphore) Size() int64 { return s.size }
