// Package client is the library with which programs use a Moraine cluster. It offers a
// namespace of files, and moves their bytes to and from chunkservers directly. It gives access
// to files by path and by inode number. A program writes a file from beginning to end (File),
// reads and writes at any offset (Handle), or reads (Reader, Stream). Package
// client/internal/session has the session with the metadata service, the requests, the leases
// and the cache. Package client/internal/stripeio has stripes, their parity and their devices.
//
// Between calls the client keeps only the file data that a sequential reader fetched ahead. It
// caches only names and attributes that it has a cache lease on. It decides no policy and knows
// nothing of checkpoints (package ckpt does).
//
// One path through it: Create makes an unlinked file. Write copies bytes into the file's
// stripe. For a full stripe the client computes checksums and parity, and puts the chunks on
// the devices of a grant's next placement (package stripeio). The stripe's record waits in the
// File (writer.go). Commit sends all records and the name to the service, which applies them in
// one log entry. A Reader maps a range to extents and reads the chunks in parallel into the
// caller's slice. It rebuilds the chunks that do not arrive (package stripeio).
package client

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/filelocks"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/client/internal/nodecache"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
)

// Client is a program's connection to a cluster, with its session. Its methods may be called
// concurrently.
type Client struct {
	cfg     Config
	clock   clock.Clock
	log     *slog.Logger
	metrics *metrics.Metrics

	meta     *session.Conn
	io       *stripeio.Engine
	paths    paths
	contents *contents        // files open for reading and writing
	node     *nodecache.Cache // nil: none
	locks    *filelocks.Book
	// incarnation is that of the newest generation that a commit made; see File.NextGeneration.
	incarnation atomic.Uint32

	stop       context.CancelFunc
	endSession func() error
	// connections are those that Connect opened; nil if the caller owns the Dialer.
	connections io.Closer

	running sync.WaitGroup
	closed  sync.Once
}

// Dial opens a session with the cluster that cfg.Metadata names, and starts the goroutines that
// keep it alive. ctx bounds only the opening; the client works until Close. The caller keeps
// deps.Dialer and closes it after the client. Each client that reads or writes data needs a Dialer
// of its own: bulk connections carry the token of one session, and chunkservers refuse the
// capabilities of another.
func Dial(ctx context.Context, cfg Config, deps Deps) (*Client, error) {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	node, err := openNodeCache(cfg, deps)
	if err != nil {
		return nil, err
	}
	c := newClient(cfg, deps)
	c.node = node
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	if err := c.meta.Start(ctx, life, &c.running); err != nil {
		stop()
		c.running.Wait()
		c.io.Pool.Close()
		c.node.Close()
		return nil, retry.Wrap("client.Dial", "", err)
	}
	c.io.Start(life, &c.running)
	c.locks.Start(life)
	c.endSession = func() error {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		c.io.Report(last) // damage that reads found and the client has not reported yet
		cancel()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		defer cancel()
		return c.meta.Close(ctx)
	}
	c.running.Go(func() { c.contents.flushOld(life, c.clock) })
	c.running.Go(func() { c.Inodes().releaseOrphans(life, c.clock) })
	return c, nil
}

func newClient(cfg Config, deps Deps) *Client {
	counts := deps.Metrics.counts
	reports := limit.NewReporter(deps.Log, counts.WaitsExceeded)
	files := &contents{orphans: orphans{ready: make(chan struct{}, 1)}}
	meta := session.New(session.Config{Metadata: cfg.Metadata, Scope: cfg.Scope, AttemptTimeout: cfg.AttemptTimeout, Patience: cfg.Patience,
		CacheEntries: cfg.CacheEntries, Delegation: cfg.Delegation, Resume: cfg.Resume.session()},
		session.Deps{Dialer: deps.Dialer, Clock: deps.Clock, Log: deps.Log, Metrics: counts, Random: deps.Random, Files: files, Reports: reports})
	io := stripeio.NewEngine(stripeio.Config{MemoryBytes: cfg.MemoryBytes, StripesInFlight: cfg.StripesInFlight, Scheme: cfg.Scheme, ChunkBytes: cfg.ChunkBytes,
		AttemptTimeout: cfg.AttemptTimeout, Patience: cfg.Patience, PutTimeout: cfg.PutTimeout, GetTimeout: cfg.GetTimeout,
		SlowFloor: cfg.SlowFloor, HedgeFloor: cfg.HedgeFloor, ReadBytesPerSecond: cfg.ReadBytesPerSecond, WriteBytesPerSecond: cfg.WriteBytesPerSecond}, meta,
		stripeio.Deps{Dialer: deps.Dialer, Clock: deps.Clock, Log: deps.Log, Metrics: counts, Reports: reports})
	return &Client{cfg: cfg, clock: deps.Clock, log: deps.Log, metrics: counts, meta: meta, io: io, contents: files, paths: paths{meta}, locks: filelocks.NewBook(meta, deps.Log, limit.Resource{
		Name: "turn of an owner of file locks", Patience: cfg.Patience, Advice: "look for metadata servers that do not answer", Reports: reports})}
}

// Close ends the session, and with it the client's grants and unlinked files. It returns when
// all goroutines of the client have ended. The caller must first commit or abort its Files and
// close its Streams.
func (c *Client) Close() error {
	var err error
	c.closed.Do(func() {
		err = c.sendDelegated()
		c.stop()
		c.running.Wait()
		c.locks.Close()
		c.io.Wait()
		c.meta.Forget() // from here on no server can recall a cache lease
		err = errors.Join(err, c.endSession())
		c.io.Pool.Close()
		c.node.Close()
		if c.connections != nil {
			err = errors.Join(err, c.connections.Close())
		}
	})
	return retry.Wrap("client.Close", "", err)
}

// sendDelegated waits until the service has what the client did in delegated directories.
func (c *Client) sendDelegated() error {
	ctx, cancel := context.WithTimeout(context.Background(), delegatedPatience)
	defer cancel()
	return c.meta.Desk.Sync(ctx, 0)
}

// delegatedPatience bounds Close's wait for what is queued.
const delegatedPatience = 30 * time.Second

// closePatience bounds each of Close's requests to the service.
const closePatience = 3 * time.Second

// MemoryInUse returns how many bytes of memory the client has lent or reserved now, as buffers
// and in its budgets. It is 0 if no call runs and no file is open. It may be called
// concurrently.
func (c *Client) MemoryInUse() int64 {
	return c.io.MemoryInUse()
}

// Session returns the number of the client's current session.
func (c *Client) Session() moraine.SessionID { return moraine.SessionID(c.meta.Current().Id) }

// Root returns the inode of the directory at which the client's paths start.
func (c *Client) Root() moraine.InodeID { return c.meta.Current().Root }
