// Package client is how programs use a Moraine cluster: a namespace of files,
// written and read straight to and from the servers that hold the bytes. It has the
// files: by path and by number, written from beginning to end (File), at any offset
// (Handle), and read (Reader, Stream). Requests to the metadata service, with the session,
// the leases and the cache, are client/internal/session; stripes, with their parity and
// their devices, are client/internal/stripeio.
//
// It keeps no file data between calls but what a sequential reader fetched
// ahead, and of names and attributes only what it holds a lease on;
// it decides no policy, and knows nothing of checkpoints (package ckpt does).
//
// One path through it: Create makes an unlinked file; Write copies bytes into
// the file's stripe; a full stripe is summed and encoded, its chunks
// are put on the devices of the next placement of a grant (package stripeio),
// and its record waits in the File (writer.go) until Commit sends all records,
// with the name, in one entry of the service's log. A Reader maps a range to
// extents, reads the chunks it touches in parallel straight into
// the caller's slice, and rebuilds those that do not come (package stripeio).
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
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/clock"
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
	io       *stripeio.Engine
	paths    paths
	contents contents // of the files open for reading and writing

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
		c.io.Pool.Close()
		return nil, retry.Wrap("client.Dial", "", err)
	}
	c.io.Start(life, &c.running)
	c.endSession = func() error {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		c.io.Report(last) // what reads found and nobody has reported yet
		cancel()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		defer cancel()
		return c.meta.Close(ctx)
	}
	c.giveBack = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		defer cancel()
		c.meta.SendAllMade(ctx)
	}
	c.running.Go(func() { c.contents.flushOld(life, c.clock) })
	return c, nil
}

func newClient(cfg Config, deps Deps) *Client {
	reports := limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)
	meta := session.New(session.Config{Metadata: cfg.Metadata, Scope: cfg.Scope, AttemptTimeout: cfg.AttemptTimeout, Patience: cfg.Patience,
		CacheEntries: cfg.CacheEntries, ExclusiveLeases: cfg.ExclusiveLeases},
		session.Deps{Dialer: deps.Dialer, Clock: deps.Clock, Log: deps.Log, Metrics: deps.Metrics, Random: deps.Random, Reports: reports})
	io := stripeio.NewEngine(stripeio.Config{MemoryBytes: cfg.MemoryBytes, StripesInFlight: cfg.StripesInFlight, Scheme: cfg.Scheme, ChunkBytes: cfg.ChunkBytes,
		AttemptTimeout: cfg.AttemptTimeout, Patience: cfg.Patience, PutTimeout: cfg.PutTimeout, GetTimeout: cfg.GetTimeout,
		SlowFloor: cfg.SlowFloor, HedgeFloor: cfg.HedgeFloor}, meta,
		stripeio.Deps{Dialer: deps.Dialer, Clock: deps.Clock, Log: deps.Log, Metrics: deps.Metrics, Reports: reports})
	return &Client{cfg: cfg, clock: deps.Clock, log: deps.Log, metrics: deps.Metrics, meta: meta, io: io, paths: paths{meta}}
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
		c.io.Wait()
		c.meta.Forget() // nobody recalls anything from here on
		err = c.endSession()
		c.io.Pool.Close()
		if c.connections != nil {
			err = errors.Join(err, c.connections.Close())
		}
	})
	return retry.Wrap("client.Close", "", err)
}

// closePatience bounds how long Close tries to tell the service.
const closePatience = 3 * time.Second

// MemoryInUse returns how many bytes of memory the client has lent and granted now: of
// buffers and of its bounds on them. A client at which no call is under way, with no file
// open, has none. It may be called concurrently.
func (c *Client) MemoryInUse() int64 {
	return c.io.MemoryInUse()
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
