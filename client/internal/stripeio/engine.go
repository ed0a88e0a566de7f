// Package stripeio reads and writes stripes, whatever file they belong to: it encodes, puts,
// gets, gathers, hedges, rebuilds and checks them. It also does the movers' work on stripes:
// repair, staging and rewriting. It does not commit files and knows no paths.
//
// One path through it, of a write: a file fills a Stripe (stripe.go) from
// memory that it reserved (budget.go). It takes a Ticket, a stripe number with
// a placement, from a grant (grants.go). A Sender (send.go) encodes the stripe
// and puts its chunks on the devices of the placement (put.go). It replaces
// devices that fail or are slow. It returns the record, which the file commits.
// If the service refuses the commit because devices went out, the Sender
// resubmits the stripe (resubmit.go).
//
// And of a read: an ExtentMap (extents.go) says where the bytes of a range are. ReadLocated
// (located.go) reads the chunks in parallel into the caller's memory (striperead.go, get.go).
// It rebuilds those that fail or are late from others (gather.go, rebuild.go). It reads evicted
// ranges from their object, by pieces (piece.go).
package stripeio

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/erasure"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport"
)

// Engine reads and writes stripes for all files of a client. Its methods may be called
// concurrently.
type Engine struct {
	inline  inlineCache
	cfg     Config
	clock   clock.Clock
	log     *slog.Logger
	metrics *metrics.Metrics

	meta     *session.Conn
	Topology *TopologyCache
	health   *health
	coders   erasure.Cache
	sample   partSample // samples the rebuilt parts of chunks
	Grants   *grantPool
	reports  *reporter
	pace     *pace

	reading, writing *bandwidth // nil: no bound

	// Pool lends the memory of write and read buffers. It never makes a writer wait: a writer
	// first reserves the bytes in Writes, and waits there.
	Pool   *bufpool.Pool
	Writes *Budget
	// Reads bounds the bytes of buffers that reads need in addition to the caller's own.
	Reads     *limit.Semaphore
	readBytes int64
	// resubmits is locked by a writer that resubmits a stripe (resubmit.go).
	resubmits Turn
	// Limits are the turns that files of the client wait for.
	Limits limits
	// Helpers bounds the chunks read early, to rebuild others from.
	Helpers *limit.Semaphore
	// Ahead bounds the bytes that sequential readers fetch ahead.
	Ahead *limit.Semaphore
	// zeros pads the last chunk of a stripe. It is never written.
	zeros []byte
}

// Config is the part of a client's configuration that stripes depend on. The fields mean the
// same as in client.Config.
type Config struct {
	MemoryBytes     int64
	StripesInFlight int
	Scheme          moraine.Scheme
	ChunkBytes      int64
	AttemptTimeout  time.Duration
	Patience        time.Duration
	PutTimeout      time.Duration
	GetTimeout      time.Duration
	SlowFloor       time.Duration
	HedgeFloor      time.Duration

	ReadBytesPerSecond, WriteBytesPerSecond int64
}

// Deps are what an engine works with. All but Reports are required.
type Deps struct {
	Dialer  transport.Dialer
	Clock   clock.Clock
	Log     *slog.Logger
	Metrics *metrics.Metrics
	// Reports receives the waits that exceeded the patience. May be nil.
	Reports *limit.Reporter
}

// NewEngine returns an engine that uses the service through meta. It starts no goroutine.
func NewEngine(cfg Config, meta *session.Conn, deps Deps) *Engine {
	readBytes := cfg.MemoryBytes / 4
	l := newLimits(cfg.Patience, deps.Reports)
	e := &Engine{cfg: cfg, clock: deps.Clock, log: deps.Log, metrics: deps.Metrics, meta: meta,
		Topology: newTopologyCache(meta, deps.Dialer, &l.topology), health: newHealth(deps.Clock),
		// The budgets total 9/8 of the memory, and a buffer may be a quarter larger than
		// requested: no caller waits for the pool itself.
		Pool:   bufpool.New(bufpool.Config{LimitBytes: cfg.MemoryBytes*3/2 + bufpool.MaxSize, Wait: l.buffers}),
		Writes: newBudget(limit.NewSemaphore(cfg.MemoryBytes-2*readBytes, l.writes), deps.Metrics),
		Reads:  limit.NewSemaphore(readBytes, l.reads), readBytes: readBytes, Limits: l,
		resubmits: NewTurn(&l.resubmits), Ahead: limit.NewSemaphore(readBytes, l.ahead), Helpers: limit.NewSemaphore(readBytes/2, l.helpers),
		zeros: make([]byte, erasure.PieceSize), pace: newPace(cfg.HedgeFloor)}
	e.reading = newBandwidth(cfg.ReadBytesPerSecond, deps.Clock, l.bandwidth, deps.Metrics.BandwidthSeconds.WithLabelValues("read"))
	e.writing = newBandwidth(cfg.WriteBytesPerSecond, deps.Clock, l.bandwidth, deps.Metrics.BandwidthSeconds.WithLabelValues("write"))
	e.sample.begin()
	e.Grants = newGrantPool(e)
	e.reports = newReporter(e)
	return e
}

// Start begins the engine's background work, until life ends, in goroutines of running. The
// session must be open.
func (e *Engine) Start(life context.Context, running *sync.WaitGroup) {
	e.Grants.start(life)
	running.Go(func() { e.Grants.run(life) })
	running.Go(func() { e.reports.run(life) })
}

// Wait returns when all running fetches and ends of grants are done. life must have ended.
func (e *Engine) Wait() { e.Grants.wait() }

// Report sends the damage that reads found and the client has not reported yet.
func (e *Engine) Report(ctx context.Context) { e.reports.deliver(ctx) }

// MemoryInUse returns how many bytes are lent or reserved now.
func (e *Engine) MemoryInUse() int64 {
	return e.Pool.Stats().InUseBytes + e.Writes.Sem.InUse() + e.Reads.InUse() + e.Ahead.InUse() + e.Helpers.InUse()
}
