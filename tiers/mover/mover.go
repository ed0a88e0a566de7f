// Package mover does the work that the metadata service leases out: it rebuilds
// and spreads the chunks of stripes below full protection, and checks and
// commits checkpoints whose parts are all sealed. Every chunkserver process
// runs one.
//
// It decides nothing: which stripes, which targets and in which order is the
// leader's. It keeps no state: a mover that stops leaves leases to run out and
// intents that the service ends.
//
// The path of a repair: Run leases a job by long poll (lease.go), renews its
// lease beside the work -> repair.go rebuilds each chunk through the client,
// puts it on its intent's device, and commits stripes in batches -> FinishJob.
// Where the lease is lost, the work stops at once and says nothing more: the
// lease's epoch fences what is still under way.
package mover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/time/rate"
)

// Config is what an operator may write; a zero takes the default.
type Config struct {
	// Jobs is how many jobs run at a time. Default 2.
	Jobs int
	// Stripes is how many stripes of one job are repaired at a time. Default 4.
	Stripes int
	// BytesPerSecond bounds the chunks rebuilt. Default 512 MiB; negative: no bound.
	BytesPerSecond int64
}

func (c *Config) setDefaults() {
	if c.Jobs == 0 {
		c.Jobs = 2
	}
	if c.Stripes == 0 {
		c.Stripes = 4
	}
	if c.BytesPerSecond == 0 {
		c.BytesPerSecond = 512 << 20
	}
}

func (c *Config) validate() error {
	if c.Jobs < 1 || c.Jobs > 64 || c.Stripes < 1 || c.Stripes > 64 {
		return &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%d jobs of %d stripes at a time; 1 to 64 of each", c.Jobs, c.Stripes)}
	}
	return nil
}

// Client is what a mover needs of a *client.Client.
type Client interface {
	// Meta answers one request, retried over failovers under one number.
	Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
	// RebuildChunk reads or computes chunk index of a stripe, and verifies it
	// against the stripe's record. release must be called once data is not used
	// any more.
	RebuildChunk(ctx context.Context, stripe *wire.Stripe, index int) (data []byte, crc uint32, release func(), err error)
	// PutRepaired puts the bytes of a chunk under an intent, durably.
	PutRepaired(ctx context.Context, stripe *wire.Stripe, intent *wire.Intent, data []byte) error
}

// Deps is what tests replace. Client is needed.
type Deps struct {
	Client Client
	// CheckStep checks a sealed checkpoint and writes its index. Default: with
	// package ckpt, over Client, which must then be a *client.Client.
	CheckStep func(ctx context.Context, key *wire.StepKey) (*wire.PartFile, error)
	Clock     clock.Clock
	Log       *slog.Logger
	Metrics   *Metrics
}

// Mover runs leased jobs.
type Mover struct {
	cfg   Config
	deps  Deps
	limit *rate.Limiter // bytes; nil: none
}

// New checks cfg and fills in defaults. It starts nothing.
func New(cfg Config, deps Deps) (*Mover, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if deps.Client == nil {
		return nil, &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument, Err: errors.New("no client")}
	}
	if c, ok := deps.Client.(*client.Client); ok && deps.CheckStep == nil {
		deps.CheckStep = func(ctx context.Context, key *wire.StepKey) (*wire.PartFile, error) {
			return ckpt.CheckStep(ctx, c, key)
		}
	}
	if deps.CheckStep == nil {
		return nil, &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument, Err: errors.New("nothing checks steps")}
	}
	if deps.Clock == nil {
		deps.Clock = clock.System{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	m := &Mover{cfg: cfg, deps: deps}
	if cfg.BytesPerSecond > 0 {
		m.limit = rate.NewLimiter(rate.Limit(cfg.BytesPerSecond), 2*moraine.MaxChunkSize)
	}
	return m, nil
}

// throttle waits until n more bytes may be rebuilt.
func (m *Mover) throttle(ctx context.Context, n int64) error {
	if m.limit == nil {
		return ctx.Err()
	}
	now := m.deps.Clock.Now()
	r := m.limit.ReserveN(now, int(min(n, int64(m.limit.Burst()))))
	d := r.DelayFrom(now)
	if d <= 0 {
		return ctx.Err()
	}
	m.deps.Metrics.RateWaits.Inc()
	select {
	case <-m.deps.Clock.After(d):
		return nil
	case <-ctx.Done():
		r.CancelAt(m.deps.Clock.Now())
		return ctx.Err()
	}
}
