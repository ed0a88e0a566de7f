package object

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
)

// Health is how the store answers this process.
type Health struct {
	// Tried: a request has been answered, or has failed.
	Tried bool
	// Err is why the last requests failed; nil where the store answers.
	Err error
	// Since is when the first of the requests that failed in a row began, or, where Err
	// is nil, when the last answer came.
	Since time.Time
}

// healthRow is how many requests in a row must fail, if none of them is a Probe, before the
// store is said to fail: one that asks a client to slow down now and then works.
const healthRow = 3

// health follows the outcomes of requests.
type health struct {
	mu       sync.Mutex // guards what follows
	answered time.Time  // last answer; zero: none
	failing  time.Time  // begin of the first request that has failed since; zero: none has
	row      int
	err      error
}

// note takes in how a request ended that began at a time. An answer is one that says what is
// at a key, or that a condition does not hold; a store that refuses the credentials, has no
// room or no such bucket fails.
func (h *health) note(op string, began, now time.Time, err error) {
	failed := false
	switch moraine.KindOf(err) {
	case moraine.Unavailable, moraine.Timeout, moraine.PermissionDenied, moraine.NoSpace:
		failed = err != nil
	case moraine.NotFound:
		failed = op == "probe" // the bucket
	case moraine.Canceled, moraine.Fenced, moraine.InvalidArgument:
		if err != nil {
			return // nothing is known
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

// Health returns how the store answers, as far as the requests so far have shown.
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

// ProbeTimeout bounds one Watch.
const ProbeTimeout = 5 * time.Second

// Watch asks the store whether the bucket is there, unless it has answered a request within
// idle. It is what makes a bucket that hangs known where nobody uses it.
func (b *Bucket) Watch(ctx context.Context, idle time.Duration) {
	if h := b.Health(); h.Tried && h.Err == nil && b.clock.Since(h.Since) < idle {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	_ = b.Probe(ctx) // Health has the outcome
}
