// Package mover does the work that the metadata service leases out: it rebuilds
// and spreads the chunks of stripes below full protection, checks and commits
// checkpoints whose parts are all sealed, and, where it has a bucket, moves
// files between stripes and objects. Every chunkserver process runs one.
//
// It also puts what files still name of stripes that are mostly dead into new ones
// (rewrite.go).
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
//
// The path of a flush: BeginObject records in Raft what is about to be done to
// the key -> flush.go uploads the file in parts (parts.go) -> BeginObject says
// that it is completing -> Complete, and a HEAD that confirms -> CommitFlush.
// Whoever gets the job next finds the intent, and settles it first. Requests to
// the store pass a fence that closes when the lease may be another's.
package mover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/time/rate"
)

// Config is what an operator may write; a zero takes the default.
type Config struct {
	// Jobs is how many jobs run at a time. Default 2.
	Jobs int
	// Moves is how many jobs of the object tier run at a time, beside the others.
	// Default 4.
	Moves int
	// UploadBytes bounds the memory of parts on their way to the bucket. Default
	// 128 MiB.
	UploadBytes int64
	// Stripes is how many stripes of one job are repaired at a time. Default 4.
	Stripes int
	// BytesPerSecond bounds the chunks rebuilt. Default 512 MiB; negative: no bound.
	BytesPerSecond int64
}

func (c *Config) setDefaults() {
	if c.Jobs == 0 {
		c.Jobs = 2
	}
	if c.Moves == 0 {
		c.Moves = 4
	}
	if c.UploadBytes == 0 {
		c.UploadBytes = 128 << 20
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
	if c.Moves < 1 || c.Moves > 64 || c.UploadBytes < pieceBytes {
		return &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%d moves at a time (1 to 64) in %d bytes (16 MiB at least)", c.Moves, c.UploadBytes)}
	}
	return nil
}

// Client is what a mover needs of a *client.Client.
type Client interface {
	// Meta answers one request, retried over failovers under one number.
	Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// Stripes is what a mover needs of client.Stripes.
type Stripes interface {
	// RebuildChunk reads or computes chunk index of a stripe, and verifies it
	// against the stripe's record. release must be called once data is not used
	// any more.
	RebuildChunk(ctx context.Context, stripe *wire.Stripe, index int, doubtful uint32) (data []byte, crc uint32, release func(), err error)
	// RecodeParity computes a parity chunk from the data of its stripe alone, and verifies
	// those against the record. release must be called once data is not used any more.
	RecodeParity(ctx context.Context, stripe *wire.Stripe, index int) (data []byte, crc uint32, release func(), err error)
	// PutRepaired puts the bytes of a chunk under an intent, durably, with the
	// capability that came with it.
	PutRepaired(ctx context.Context, stripe *wire.Stripe, intent *wire.Intent, capability, data []byte) error
}

// Deps is what tests replace. Client is needed.
type Deps struct {
	Client Client
	// Stripes repairs chunks. Default: Stripes of Client, which must then be a *client.Client.
	Stripes Stripes
	// CheckStep checks a sealed checkpoint and writes its index. Default: with
	// package ckpt, over Client, which must then be a *client.Client.
	CheckStep func(ctx context.Context, key *wire.StepKey) (*wire.PartFile, error)
	// Bucket is the object tier; nil: none, and no job of it is leased.
	Bucket Bucket
	// Open opens a file's present content. Default: Inodes().Open of Client.
	Open func(ctx context.Context, inode moraine.InodeID) (Content, error)
	// Stage brings the evicted ranges within [off, off+n) of the file of a STAGE
	// job back to stripes; it asks pace before it moves so many bytes. Default:
	// StageRange of Stripes, where it has that.
	Stage func(ctx context.Context, job *wire.Job, off, n int64, pace func(ctx context.Context, n int64) error) error
	// Rewrite puts what the file of a REWRITE job names of the job's stripes into new
	// ones, at the pace that is given, and returns how many bytes that were. Default:
	// RewriteStripes of Client, where that is a *client.Client.
	Rewrite func(ctx context.Context, job *wire.Job, pace func(ctx context.Context, n int64) error) (client.Rewritten, error)
	// Pace waits until the process may receive or send so many bytes more of chunks and
	// objects, and go on working; it is asked before each piece of work. Default: without
	// limits.
	Pace func(ctx context.Context, bytes int64) error
	// PaceRepair is Pace for repairs. Default: Pace.
	PaceRepair func(ctx context.Context, bytes int64) error
	Clock      clock.Clock
	Log        *slog.Logger
	Metrics    *Metrics
}

// stager is a client that can bring evicted ranges back.
type stager interface {
	// StageRange reads the pieces of the evicted ranges within [off, off+n),
	// verified, writes them as stripes and has them swapped in under the job's
	// lease; before each stripe it asks pace for the bytes that it moves. Stale where
	// the file has other content by now.
	StageRange(ctx context.Context, job moraine.JobID, epoch uint64, attr *wire.Attr, object *wire.Object, off, n int64,
		pace func(ctx context.Context, n int64) error) error
}

// Mover runs leased jobs.
type Mover struct {
	cfg   Config
	deps  Deps
	limit *rate.Limiter // bytes; nil: none
	// uploads bounds the memory of parts under way.
	uploads *limit.Semaphore
	turns   [lanes]chan struct{} // of one place each: who has it asks Deps.Pace
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
	if c, ok := deps.Client.(*client.Client); ok && deps.Stripes == nil {
		deps.Stripes = c.Stripes()
	}
	if deps.Stripes == nil {
		return nil, &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument, Err: errors.New("nothing repairs stripes")}
	}
	if c, ok := deps.Client.(*client.Client); ok && deps.CheckStep == nil {
		deps.CheckStep = func(ctx context.Context, key *wire.StepKey) (*wire.PartFile, error) {
			return ckpt.CheckStep(ctx, c, key)
		}
	}
	if s, ok := deps.Stripes.(stager); ok && deps.Stage == nil {
		deps.Stage = func(ctx context.Context, job *wire.Job, off, n int64, pace func(context.Context, int64) error) error {
			return s.StageRange(ctx, moraine.JobID(job.GetId()), job.GetLeaseEpoch(), job.GetMove().GetAttr(), job.GetMove().GetObject(), off, n, pace)
		}
	}
	if c, ok := deps.Client.(*client.Client); ok && deps.Rewrite == nil {
		deps.Rewrite = c.Stripes().RewriteStripes
	}
	if c, ok := deps.Client.(*client.Client); ok && deps.Open == nil {
		deps.Open = func(ctx context.Context, inode moraine.InodeID) (Content, error) { return c.Inodes().Open(ctx, inode) }
	}
	if deps.Bucket != nil && deps.Open == nil {
		return nil, &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument, Err: errors.New("nothing opens files")}
	}
	if deps.CheckStep == nil {
		return nil, &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument, Err: errors.New("nothing checks steps")}
	}
	if deps.Pace == nil {
		deps.Pace = func(ctx context.Context, _ int64) error { return ctx.Err() }
	}
	if deps.PaceRepair == nil {
		deps.PaceRepair = deps.Pace
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
	m := &Mover{cfg: cfg, deps: deps, uploads: limit.NewSemaphore(cfg.UploadBytes, limit.Resource{Name: "memory of uploads",
		Patience: uploadPatience, Advice: "the bucket is slow or does not answer", Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)})}
	for i := range m.turns {
		m.turns[i] = make(chan struct{}, 1)
	}
	if cfg.BytesPerSecond > 0 {
		m.limit = rate.NewLimiter(rate.Limit(cfg.BytesPerSecond), 2*moraine.MaxChunkSize)
	}
	return m, nil
}

// lane is which work waits for which: a long flush must not keep a repair waiting.
type lane int

const (
	laneRepair  lane = iota
	laneBalance      // moves between devices, and out of stripes that are mostly dead
	laneMove         // the object tier
	lanes
)

func laneOf(k wire.JobKind) lane {
	switch {
	case slices.Contains(balanceKinds, k):
		return laneBalance
	case slices.Contains(moveKinds, k):
		return laneMove
	}
	return laneRepair
}

// pace waits until the process may receive and send so many bytes more. One piece of
// work of a lane asks after the other: what has been given to many would all go at once, and
// their waiting beside each other would leave little to the clients of the process. What
// moves no bytes waits for no turn, and the commit of a checkpoint, for which people wait and
// which moves next to nothing, for nothing.
func (w *work) pace(ctx context.Context, n int64) error {
	kind := w.job.GetKind()
	ask := w.deps.Pace
	if kind == wire.JobKind_JOB_KIND_REPAIR {
		ask = w.deps.PaceRepair
	}
	switch {
	case kind == wire.JobKind_JOB_KIND_COMMIT_STEP:
		return ctx.Err()
	case n == 0:
		return ask(ctx, 0)
	}
	turn := w.turns[laneOf(kind)]
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return ask(ctx, n)
}

// throttle waits until n more bytes may be rebuilt.
func (m *Mover) throttle(ctx context.Context, n int64) error {
	if m.limit == nil {
		return ctx.Err()
	}
	for part := int64(m.limit.Burst()); n > part; n -= part {
		if err := m.throttle(ctx, part); err != nil {
			return err
		}
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
