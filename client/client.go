// Package client is how programs use a Moraine cluster: a namespace of files,
// written and read straight to and from the servers that hold the bytes. It
// makes stripes and their parity, finds devices, repeats what was not answered,
// rebuilds what is lost while it reads, and checks every byte that it returns.
//
// It keeps no file data between calls but what a sequential reader fetched
// ahead, and of names and attributes only what it holds a lease on (cache.go);
// it decides no policy, and knows nothing of checkpoints (package ckpt does).
//
// One path through it: Create makes an unlinked file; Write copies bytes into
// the file's stripe; a full stripe is summed and encoded (stripe.go), its chunks
// are put on the devices of the next placement of a grant (grants.go, put.go),
// and its record waits in the File (writer.go) until Commit sends all records,
// with the name, in one entry of the service's log. A Reader maps a range to
// extents (extents.go), reads the chunks it touches in parallel straight into
// the caller's slice, and rebuilds those that do not come (striperead.go).
package client

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/erasure"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport/wire"
)

// Client is one program's standing with a cluster. Its methods may be called
// concurrently.
type Client struct {
	cfg     Config
	clock   clock.Clock
	log     *slog.Logger
	metrics *metrics.Metrics

	meta     *session.Conn
	topology *topologyCache
	health   *health
	coders   erasure.Cache
	sample   partSample // of the parts of chunks that reads rebuild
	grants   *grantPool
	reports  *reporter
	pace     *pace
	contents contents // of the files open for reading and writing

	// pool lends the memory of write and read buffers. It never makes a writer
	// wait: writes reserves the bytes first, and is what waits.
	pool   *bufpool.Pool
	writes *budget
	// reads bounds the bytes of buffers that reads need beside the caller's own.
	reads     *limit.Semaphore
	readBytes int64
	// resubmits is held by a writer that resubmits a stripe (resubmit.go).
	resubmits gate
	// limits are what files of the client wait for, one at a time.
	limits limits
	// helpers bounds the chunks read ahead of need, to rebuild others from.
	helpers *limit.Semaphore
	// ahead bounds what sequential readers fetched ahead.
	ahead *limit.Semaphore
	// zeros is what pads the last chunk of a stripe. Nobody writes to it.
	zeros []byte

	stop       context.CancelFunc
	endSession func() error
	// giveBack ends the exclusive leases.
	giveBack func()
	// connections is what Connect opened; nil where the caller owns the Dialer.
	connections io.Closer

	running sync.WaitGroup
	closed  sync.Once
}

// Dial opens a session with the cluster that cfg.Metadata names, and starts
// what keeps it alive. ctx bounds only the opening; the client works until
// Close. deps.Dialer stays the caller's, to be closed after the client.
func Dial(ctx context.Context, cfg Config, deps Deps) (*Client, error) {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := newClient(cfg, deps)
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	if err := c.meta.Start(ctx, life, &c.running); err != nil {
		stop()
		c.running.Wait()
		c.pool.Close()
		return nil, retry.Wrap("client.Dial", "", err)
	}
	c.grants.start(life)
	c.endSession = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		defer cancel()
		return c.meta.Close(ctx)
	}
	c.giveBack = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		defer cancel()
		c.meta.SendAllMade(ctx)
	}
	for _, run := range []func(context.Context){c.grants.run, c.reports.run, c.flushOld} {
		c.running.Go(func() { run(life) })
	}
	return c, nil
}

func newClient(cfg Config, deps Deps) *Client {
	meta := session.New(session.Config{Metadata: cfg.Metadata, Scope: cfg.Scope, AttemptTimeout: cfg.AttemptTimeout, Patience: cfg.Patience,
		CacheEntries: cfg.CacheEntries, ExclusiveLeases: cfg.ExclusiveLeases},
		session.Deps{Dialer: deps.Dialer, Clock: deps.Clock, Log: deps.Log, Metrics: deps.Metrics, Random: deps.Random})
	readBytes := cfg.MemoryBytes / 4
	l := newLimits(cfg.Patience, limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded))
	c := &Client{cfg: cfg, clock: deps.Clock, log: deps.Log, metrics: deps.Metrics, meta: meta,
		topology: newTopologyCache(meta, deps.Dialer), health: newHealth(deps.Clock),
		// The budgets come to 9/8 of the memory, and a buffer may be a quarter
		// larger than what is asked for: nobody waits for the pool itself.
		pool:   bufpool.New(bufpool.Config{LimitBytes: cfg.MemoryBytes*3/2 + bufpool.MaxSize, Wait: l.buffers}),
		writes: newBudget(limit.NewSemaphore(cfg.MemoryBytes-2*readBytes, l.writes), deps.Metrics),
		reads:  limit.NewSemaphore(readBytes, l.reads), readBytes: readBytes, limits: l,
		resubmits: newGate(&l.resubmits), ahead: limit.NewSemaphore(readBytes, l.ahead), helpers: limit.NewSemaphore(readBytes/2, l.helpers),
		zeros: make([]byte, erasure.PieceSize), pace: newPace(cfg.HedgeFloor)}
	c.sample.begin()
	c.grants = newGrantPool(c)
	c.reports = newReporter(c)
	return c
}

// Close ends the session, and with it the grants and unlinked files that the
// client still has, and returns when everything that the client started has
// ended. Files must have been committed or aborted, and Streams closed, before.
func (c *Client) Close() error {
	var err error
	c.closed.Do(func() {
		c.giveBack()
		c.stop()
		c.running.Wait()
		c.grants.wait()
		c.meta.Forget() // nobody recalls anything from here on
		c.lastReport()
		err = c.endSession()
		c.pool.Close()
		if c.connections != nil {
			err = errors.Join(err, c.connections.Close())
		}
	})
	return retry.Wrap("client.Close", "", err)
}

// lastReport delivers what reads found and nobody has reported yet.
func (c *Client) lastReport() {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	c.reports.deliver(ctx)
}

// closePatience bounds how long Close tries to tell the service.
const closePatience = 3 * time.Second

// MemoryInUse returns how many bytes of memory the client has lent and granted now: of
// buffers and of its bounds on them. A client at which no call is under way, with no file
// open, has none. It may be called concurrently.
func (c *Client) MemoryInUse() int64 {
	return c.pool.Stats().InUseBytes + c.writes.sem.InUse() + c.reads.InUse() + c.ahead.InUse() + c.helpers.InUse()
}

// Meta makes one request to the metadata service, under the client's session,
// and repeats it across lost replies, failovers and redirects until it is
// answered, ctx ends, or Config.Patience has passed. A mutation keeps its
// number through all attempts, so that it is applied at most once. The caller
// sets only req.Op (and Partition), which must not change until Meta returns;
// session and numbers are filled in here.
//
// The error is a *moraine.Error: the service's answer, or Timeout or Canceled
// where ctx or the patience ended, or an answer was lost and a further attempt
// was not let in: then it is unknown whether a mutation took effect. Where the session has expired a new one is opened, and the request is
// made again under it, unless an attempt under the old one may have taken
// effect, or the request is about what the old one owned: then the error is
// SessionExpired, and later requests run under the new session.
func (c *Client) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return c.meta.Do(ctx, req)
}

// Session returns the number of the client's present session.
func (c *Client) Session() moraine.SessionID { return moraine.SessionID(c.meta.Current().Id) }

// Root returns the directory that the client's paths start at.
func (c *Client) Root() moraine.InodeID { return c.meta.Current().Root }
