// Package delegation is the desk of a client: while the client alone works in a directory, the
// service delegates the directory to its session, and the desk carries out the changes there by
// itself. It sends them later, in order, in batches. RFC 0033 has the reasons.
//
// One path through it: the client sends its changes of names in a directory to the service, until made
// asks for a delegation (ask.go). From then on Do applies a create to the table (table.go, names.go), or a
// removal of what was there before (older.go), and puts it into the queue (queue.go). The sender takes up to a batch of changes (sender.go). A request
// that the desk cannot answer goes to the service between Begin and its end (plain.go), after what is
// queued about its inodes. When another client wants something of the directory, the service recalls
// it: the desk sends its queue and gives the directory back (ending.go).
package delegation

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport/wire"
)

// Service is how a desk reaches the metadata service, and the cache of its client. Its methods may be
// called concurrently. Send, List, AwaitLent and Settle wait, and are called without the desk's mutex. The
// others may be called while it is held.
type Service interface {
	// Send makes a request under a session, past the desk. SessionExpired: the session has ended.
	Send(ctx context.Context, req *wire.MetaRequest, session uint64) (*wire.MetaResponse, error)
	// Standing is the standing under which the client trusts its leases now; zero: it trusts none.
	Standing() Standing
	// Newest is the standing of the client, trusted or not.
	Newest() Standing
	// Hide makes the cache forget entries of directories and attributes of inodes, and keep none, until
	// Show.
	Hide(inodes ...uint64)
	Show(inodes ...uint64)
	// List reads a page of a directory under a session, past the desk. keep lets the cache keep the
	// attributes of some of its entries, as far as a lease covers them; before is how many entries the pages
	// before had. It may be called with the mutex held.
	List(ctx context.Context, req *wire.ReadDir, session uint64) (r *wire.ReadDirReply, keep func(entries []*wire.DirEntry, before int), err error)
	// Attr is what the cache has of an inode, nil if nothing. It is shared and must not be changed.
	Attr(inode uint64) *wire.Attr
	// AwaitLent returns when no kernel answers the names that a request changes, in hidden directories, by
	// itself: the kernel whose call it is knows what it changes.
	AwaitLent(ctx context.Context, req *wire.MetaRequest)
	// Settle makes kernels forget attributes of inodes that the caller's call has changed.
	Settle(ctx context.Context, inodes []uint64)
}

// Standing is what delegations depend on besides the session: with it the client would also lose the
// leases on their directories.
type Standing struct{ Session, Epoch uint64 }

// Deps are what a desk works with.
type Deps struct {
	Service Service
	Clock   clock.Clock
	Log     *slog.Logger
	Metrics *metrics.Metrics
	// Waits describes the waits of calls for the queue.
	Waits limit.Resource
	// Loan is for how long a kernel may answer what the cache has lent it.
	Loan time.Duration
}

// Desk applies changes of delegated directories, and sends them. A nil Desk does nothing. Its methods
// may be called concurrently.
type Desk struct{ table }

// table is what a desk knows, and how it waits and gives back.
type table struct {
	Deps
	life    context.Context // of its own requests
	running sync.WaitGroup
	// engaged is set while something is delegated, queued, or asked for: otherwise requests pass without the mutex.
	engaged atomic.Bool
	send    chan struct{} // gets a value when the sender has work
	tend    chan struct{} // gets a value when the keeper has work
	notices notices

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when a wait may be over
	nodes   map[uint64]*node
	dirs    map[uint64]*dir
	holds   map[uint64]int // running requests to the service that may change an inode
	queue   queue
	session uint64 // of all delegations and numbers
	numbers numbers
	times   times
	asks    asks
	ending  int      // requests that end all delegations, and wait or run: meanwhile the desk asks for none
	apart   bool     // content is not sent with the create of its file, and not answered before: the metadata kept none of one
	faults  faults   // of inodes
	used    uint64   // counts uses of directories
	giving  []uint64 // directories that are being given back, in order
}

// New returns a desk; Start lets it work.
func New(deps Deps) *Desk {
	return &Desk{table{Deps: deps, send: make(chan struct{}, 1), tend: make(chan struct{}, 1),
		changed: make(chan struct{}), nodes: map[uint64]*node{}, dirs: map[uint64]*dir{}, holds: map[uint64]int{},
		queue: queue{about: map[uint64]int{}}, asks: asks{of: map[uint64]*ask{}}, faults: faults{}}}
}

// Start sends and gives back until life ends.
func (d *Desk) Start(life context.Context, running *sync.WaitGroup) {
	if d == nil {
		return
	}
	d.life = life
	running.Go(func() { d.sendEach(life) })
	running.Go(func() {
		d.keep(life)
		d.running.Wait()
	})
}

// signal gives a channel of one place a value.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wake lets those look again who wait for the table or the queue. The caller holds the mutex.
func (d *table) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
	d.engaged.Store(len(d.dirs)+len(d.queue.ops)+d.asks.running > 0)
}

// until calls ready, with the mutex held, until it returns true. It waits for changes in between, for
// the patience at most.
func (d *table) until(ctx context.Context, ready func() bool) error {
	for {
		d.mu.Lock()
		ok, changed := ready(), d.changed
		d.mu.Unlock()
		if ok {
			return nil
		}
		if err := d.await(ctx, changed); err != nil {
			return err
		}
	}
}

func (d *table) await(ctx context.Context, changed <-chan struct{}) error {
	return d.Waits.Wait(ctx, func(ctx context.Context) error {
		select {
		case <-changed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// times estimates the time of the service: what it said last, and the time since then. The estimate
// is never past the service's own time, so that changes keep the times that the desk gives them.
type times struct {
	seen int64     // a time of the service, in nanoseconds
	at   time.Time // when the client saw it
	last int64     // that the desk gave
}

// slow is by how much of the elapsed time the estimate falls behind, for clocks of different speeds.
const slow = 2000

func (t *times) estimate(now time.Time) int64 {
	if t.seen == 0 {
		return 0
	}
	elapsed := now.Sub(t.at)
	return t.seen + int64(elapsed-elapsed/slow)
}

// saw takes a time of the service.
func (t *times) saw(seen int64, now time.Time) {
	if seen > t.estimate(now) {
		t.seen, t.at = seen, now
	}
}

// next returns the time of the next change: later than all before.
func (t *times) next(now time.Time) int64 {
	t.last = max(t.last+1, t.estimate(now))
	return t.last
}
