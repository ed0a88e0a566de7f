package object

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
)

// Health is how the store responds to this process.
type Health struct {
	// Tried: a request was answered, or failed.
	Tried bool
	// Err is the error of the last requests; nil while the store answers.
	Err error
	// Since is when the first of the consecutive failed requests began. If Err is
	// nil, it is when the last answer arrived.
	Since time.Time
}

// healthRow is how many consecutive requests must fail, none of them a Probe,
// before Health reports a failure. A store that throttles a client now and then
// works.
const healthRow = 3

// health tracks the outcomes of requests.
type health struct {
	mu       sync.Mutex // guards the fields below
	answered time.Time  // time of the last answer; zero: none
	failing  time.Time  // begin of the first request that failed since; zero: none
	row      int
	err      error
}

// note records the outcome of a request that began at a given time. It counts as an
// answer if it says what is at a key, or that a condition is false. A store that
// refuses the credentials, is full or lacks the bucket counts as failed.
func (h *health) note(op string, began, now time.Time, err error) {
	failed := false
	switch moraine.KindOf(err) {
	case moraine.Unavailable, moraine.Timeout, moraine.PermissionDenied, moraine.NoSpace:
		failed = err != nil
	case moraine.NotFound:
		failed = op == "probe" // the bucket
	case moraine.Canceled, moraine.Fenced, moraine.InvalidArgument:
		if err != nil {
			return // nothing is known from it
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !failed {
		h.answered, h.failing, h.row, h.err = now, time.Time{}, 0, nil
		return
	}
	if h.failing.IsZero() {
		h.failing = began
	}
	h.row++
	if op == "probe" {
		h.row = max(h.row, healthRow)
	}
	h.err = err
}

// Health returns how the store responds, judged by the requests so far.
func (b *Bucket) Health() Health {
	h := &b.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.err != nil && (h.row >= healthRow || h.answered.IsZero()):
		return Health{Tried: true, Err: h.err, Since: h.failing}
	case h.answered.IsZero():
		return Health{}
	}
	return Health{Tried: true, Since: h.answered}
}

// ProbeTimeout limits one Watch.
const ProbeTimeout = 5 * time.Second

// Watch probes the bucket unless a request was answered within idle. It thereby
// detects a bucket that hangs while nothing uses it.
func (b *Bucket) Watch(ctx context.Context, idle time.Duration) {
	if h := b.Health(); h.Tried && h.Err == nil && b.clock.Since(h.Since) < idle {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	_ = b.Probe(ctx) // Health reports the outcome
}
