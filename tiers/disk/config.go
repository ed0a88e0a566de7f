package disk

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
)

// Config names the device to open and sets its limits.
type Config struct {
	// Dir is the device's directory.
	Dir string
	// Cluster is the cluster that the device must belong to; zero: any cluster.
	Cluster moraine.UUID
	// CapacityBytes limits the space of chunks; 0: the size of the file system.
	CapacityBytes uint64
	// SegmentBytes is the size of new segments, in bytes. Default 1 GiB. A
	// segment is smaller where the file system is nearly full, and larger where
	// a single record would not fit.
	SegmentBytes int64
	// BallastBytes is the size of the ballast file. It is removed when the file
	// system is full, so that deletions can still be written. Default 64 MiB;
	// negative: none.
	BallastBytes int64
	// IndexCacheBytes limits the cache of the index. Default 32 MiB.
	IndexCacheBytes int64
	// SumCacheBytes limits the cache of block sums of chunks that are read in part.
	// Default 16 MiB.
	SumCacheBytes int64
	// ReclaimInterval is the time between two reclaims of space. Default 1 s.
	ReclaimInterval time.Duration
}

func (c *Config) setDefaults() {
	c.SegmentBytes = cmp.Or(c.SegmentBytes, 1<<30)
	c.BallastBytes = cmp.Or(c.BallastBytes, 64<<20)
	c.IndexCacheBytes = cmp.Or(c.IndexCacheBytes, 32<<20)
	c.SumCacheBytes = cmp.Or(c.SumCacheBytes, 16<<20)
	c.ReclaimInterval = cmp.Or(c.ReclaimInterval, time.Second)
}

func (c *Config) validate() error {
	bad := func(text string) error {
		return &moraine.Error{Op: "disk.Open", Ref: c.Dir, Kind: moraine.InvalidArgument, Err: errors.New(text)}
	}
	switch {
	case c.Dir == "":
		return bad("no directory given: set Dir")
	case c.SegmentBytes < 2*block || c.SegmentBytes%block != 0:
		return bad("the segment size must be a multiple of 4 KiB, and at least 8 KiB")
	case c.SegmentBytes > 1<<40:
		return bad("the segment size must be at most 1 TiB")
	case c.ReclaimInterval < 0:
		return bad("the reclaim interval is negative")
	}
	return nil
}

// Deps are the dependencies of a Device. FS is required; the rest has defaults.
type Deps struct {
	FS    vfs.FS
	Clock clock.Clock
	// Pool lends the buffers of reads. A Device never waits for a buffer of Pool
	// while it holds another one.
	Pool Pool
	// Random generates the UUID and salt of a new device. Default crypto/rand.
	Random  io.Reader
	Log     *slog.Logger
	Metrics *Metrics
	// ReadTook, unless nil, is called after each read of a chunk or of a part of
	// it. It gets the bytes requested, the number of other reads in progress when
	// the read began, and the time that the medium took. It may be called
	// concurrently.
	ReadTook func(bytes, others int, took time.Duration)
}

// Pool is what a Device requires of a *bufpool.Pool or another lender.
type Pool interface {
	// Get lends a buffer of n bytes. It waits for one until ctx ends.
	Get(ctx context.Context, n int) (*bufpool.Buffer, error)
}

func (d *Deps) setDefaults() {
	d.Clock = cmp.Or[clock.Clock](d.Clock, clock.System{})
	if d.Pool == nil {
		d.Pool = bufpool.New(bufpool.Config{})
	}
	d.Random = cmp.Or[io.Reader](d.Random, rand.Reader)
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
}
