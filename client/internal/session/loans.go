package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// loanTime is how long a loan lasts: until then a kernel may answer from what was lent.
	loanTime = 500 * time.Millisecond
	// kernelTime is what the kernel gets of it. The kernel counts from when it processes the
	// answer. The rest of the loan is for the way of the answer.
	kernelTime = loanTime / 2
	// quietTime is how long a lease is not lent after a change of what it covers.
	quietTime = 5 * time.Second
	// A lease is not lent for firstPause after somebody had to wait for the end of its loan. The
	// pause doubles up to lastPause if that happens again soon after.
	firstPause, lastPause = time.Minute, time.Hour
	// sweepPause is the time between two searches of a full table.
	sweepPause = time.Second
)

// loans records what kernels may answer by themselves. A kernel cannot be made to forget a name
// in time: that needs locks which its own calls hold while they wait for the mount. So a loan
// ends by itself, and until then the client keeps what the loan relies on:
//
//   - It does not acknowledge the recall of a lent name (withhold), and lends nothing meanwhile.
//     Attributes are different: a kernel forgets them at once (forgetLent).
//   - It does not return the lease, and does not begin another standing: both end the wait of the
//     service for this client.
//   - A change by another user of the same client is not sent (before). The service does not
//     recall it from this client.
//
// The methods hold the mutex of the cache, or their caller does.
type loans struct {
	mu      *sync.Mutex
	clock   clock.Clock
	metrics *metrics.Metrics

	of    map[uint64]*loan // by lease
	sweep int              // of this length, of is searched for what no longer matters
	swept time.Time        // the last search
	last  time.Time        // end of the last loan
	// due is until when recalls are not acknowledged.
	due time.Time
	// toForget is what kernels must forget first, and forgetting how much of it is being done.
	toForget   []forgetting
	forgetting int
}

// loan is what the client remembers of the loans of one lease.
type loan struct {
	end    time.Time // of the last loan
	from   time.Time // not lent before
	pause  time.Duration
	paused time.Time // end of the last pause
	by     []*Borrower
}

// record returns the record of a lease, nil if there are too many.
func (s *loans) record(lease uint64, now time.Time, limit int) *loan {
	if l := s.of[lease]; l != nil {
		return l
	}
	if n := len(s.of); n >= max(s.sweep, 1024) || n >= limit && now.Sub(s.swept) >= sweepPause {
		s.swept = now
		for id, l := range s.of {
			if !now.Before(l.end) && !now.Before(l.from) && now.Sub(l.paused) > l.pause {
				delete(s.of, id)
			}
		}
		s.sweep = 2 * len(s.of)
	}
	if len(s.of) >= limit {
		return nil
	}
	if s.of == nil {
		s.of = map[uint64]*loan{}
	}
	l := &loan{}
	s.of[lease] = l
	return l
}

// changed records a change of what a lease covers. held says that the client has the lease.
func (s *loans) changed(lease uint64, held bool, now time.Time, limit int) {
	l := s.of[lease]
	if l == nil && held {
		l = s.record(lease, now, limit)
	}
	if from := now.Add(quietTime); l != nil && l.from.Before(from) {
		l.from = from
	}
}

// recalled delays the acknowledgement of a recall, if what it touches is lent: until kernels have
// forgotten attributes, and until the loan of a name is over.
func (s *loans) recalled(t *wire.Touch, now time.Time) {
	l := s.of[t.Lease]
	if l == nil || !now.Before(l.end) {
		return
	}
	if t.Name == "" {
		s.toForget = append(s.toForget, forgetting{t.Inode, t.Lease, slices.Clone(l.by)})
		return
	}
	s.withhold(l, now)
}

// withhold delays acknowledgements until a loan is over.
func (s *loans) withhold(l *loan, now time.Time) {
	if s.due.Before(l.end) {
		s.due = l.end
	}
	l.stop(now)
}

// stop begins a pause, since somebody waits for the end of the loan.
func (l *loan) stop(now time.Time) {
	if now.Before(l.paused) {
		return // by an earlier wait during the same loan
	}
	if now.Sub(l.paused) > l.pause {
		l.pause = firstPause
	} else {
		l.pause = min(2*l.pause, lastPause)
	}
	l.paused = now.Add(l.pause)
	l.from = l.paused
}

// forgetting is attributes that kernels must forget before a recall is acknowledged.
type forgetting struct {
	inode, lease uint64
	by           []*Borrower
}

// forgetLent has kernels forget the lent attributes that were recalled. A kernel also drops
// answers with such attributes that it gets later. But if it does not know the inode, such an
// answer may be the first that it gets. Then the loan must end.
func (s *loans) forgetLent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.toForget
	s.toForget = nil
	s.forgetting += len(all)
	for _, f := range all {
		s.mu.Unlock() // the kernel may call the mount meanwhile
		known := true
		for _, b := range f.by {
			known = b.forget(moraine.InodeID(f.inode)) && known
		}
		s.mu.Lock()
		s.forgetting--
		now := s.clock.Now()
		if l := s.of[f.lease]; !known && l != nil && now.Before(l.end) {
			s.withhold(l, now)
		}
	}
}

// withheld reports whether recalls may not be acknowledged now.
func (s *loans) withheld(now time.Time) bool {
	return len(s.toForget) > 0 || s.forgetting > 0 || now.Before(s.due)
}

// lent reports whether the loan of a lease is not over.
func (s *loans) lent(lease uint64, now time.Time) bool {
	l := s.of[lease]
	return l != nil && now.Before(l.end)
}

// returnable divides leases to return into those whose loans are over and the rest.
func (s *loans) returnable(back []uint64, now time.Time) (over, rest []uint64) {
	for _, id := range back {
		if s.lent(id, now) {
			rest = append(rest, id)
		} else {
			over = append(over, id)
		}
	}
	return over, rest
}

// awaitAll waits until every loan made so far is over.
func (s *loans) awaitAll(ctx context.Context) {
	s.awaitTime(ctx, func() time.Time { return s.last })
}

// awaitDue waits until recalls may be acknowledged.
func (s *loans) awaitDue(ctx context.Context) (waited bool) {
	return s.awaitTime(ctx, func() time.Time { return s.due })
}

// awaitTime waits for a time that may grow meanwhile. It reports whether it waited.
func (s *loans) awaitTime(ctx context.Context, until func() time.Time) (waited bool) {
	for ; ; waited = true {
		s.mu.Lock()
		left := until().Sub(s.clock.Now())
		s.mu.Unlock()
		if left <= 0 {
			return waited
		}
		select {
		case <-s.clock.After(left):
		case <-ctx.Done():
			return true
		}
	}
}
