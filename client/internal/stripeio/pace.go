package stripeio

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pace knows how long reads of chunks take, which are late, and how many more requests may be
// made for late ones. Safe for concurrent use.
type pace struct {
	floor time.Duration
	queue queue

	mu      sync.Mutex
	classes [paceClasses]paceClass
	credit  float64 // requests that may still be made for late chunks
}

// paceClass has the last times of requests of about one size.
type paceClass struct {
	times [paceWindow]time.Duration
	n     int // in all
	p95   time.Duration
}

const (
	paceClasses = 16 // by powers of two from 4 KiB
	paceWindow  = 64
	// creditEach is what each answered request adds to the credit, so that hedging adds at most
	// that fraction of requests. maxCredit bounds a burst.
	creditEach = 0.1
	maxCredit  = 32
	// latest bounds p95 as the time after which a request is late.
	latest = 2 * time.Second
)

func newPace(floor time.Duration) *pace { return &pace{floor: floor, credit: maxCredit / 2} }

func paceClassOf(n int) int {
	return min(max(bits.Len(uint(n))-12, 0), paceClasses-1)
}

// observe records that a request for n bytes was answered after d.
func (p *pace) observe(n int, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.credit = min(p.credit+creditEach, maxCredit)
	c := &p.classes[paceClassOf(n)]
	c.times[c.n%paceWindow] = d
	c.n++
	if c.n%(paceWindow/4) == 0 {
		t := slices.Clone(c.times[:min(c.n, paceWindow)])
		slices.Sort(t)
		c.p95 = t[len(t)*95/100]
	}
}

// late returns the time after which a request for n bytes is late.
func (p *pace) late(n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.floor, min(p.classes[paceClassOf(n)].p95, latest))
}

// spend takes the credit for n requests; false: there is not enough.
func (p *pace) spend(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.credit < float64(n) {
		return false
	}
	p.credit -= float64(n)
	return true
}

// queue counts bytes of chunks that were requested and that arrived. A client that requests much at
// once waits long for each chunk, though none is late: it gets the others meanwhile.
type queue struct {
	open, arrived atomic.Int64
}

// wait is one request in the queue. One goroutine uses it.
type wait struct {
	from int64 // what had arrived when it was made
	seen int64 // what had arrived at the last look
	most int64 // the most that was requested at once, as far as looks saw
}

// join returns the wait of a request that is made now.
func (q *queue) join() wait {
	now := q.arrived.Load()
	return wait{from: now, seen: now}
}

// moves reports whether others make the request wait: bytes have arrived since the last look, and since it
// was made not twice as many as were requested at once.
func (q *queue) moves(w *wait) bool {
	now := q.arrived.Load()
	moved := now > w.seen
	w.seen, w.most = now, max(w.most, q.open.Load())
	return moved && now-w.from < 2*w.most
}
