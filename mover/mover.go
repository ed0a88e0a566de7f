// Package mover runs the jobs that the metadata service leases out. It rebuilds and moves the
// chunks of stripes below full protection, and checks and commits checkpoints whose parts are
// all sealed. If it has a bucket, it moves files between stripes and objects. Every chunkserver
// process runs one.
//
// It also rewrites the live bytes of mostly dead stripes, and packs small files (rewrite.go).
//
// It decides nothing: the leader chooses stripes, targets and order. It keeps no state: a mover
// that stops leaves leases that expire and intents that the service ends.
//
// The path of a repair: Run leases a job by long poll (lease.go) and renews its lease during
// the work -> repair.go rebuilds each chunk through the client, puts it on its intent's device,
// and commits stripes in batches -> FinishJob. If the lease is lost, the work stops at once and
// reports nothing: the lease's epoch fences running requests.
//
// The path of a flush: BeginObject records in the Raft log what the mover will
// do to the key -> flush.go uploads the file in parts (parts.go) -> BeginObject
// records that the upload is completing -> Complete, and a HEAD that confirms
// -> CommitFlush. The next holder of the job finds the intent, and completes it
// first. Requests to the store pass a fence that closes when another mover may
// have the lease.
package mover

import (
	"cmp"
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
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/time/rate"
)

// Config is what an operator may set; zero means the default.
type Config struct {
	// Jobs is how many jobs run at a time. Default 2.
	Jobs int
	// Moves is how many jobs of the object tier run at a time, in addition to the others. Default
	// 4.
	Moves int
	// UploadBytes bounds the memory of parts that are being uploaded. Default 128 MiB.
	UploadBytes int64
	// Stripes is how many stripes of one job are repaired at a time. Default 4.
	Stripes int
	// BytesPerSecond bounds the rebuilt chunks, in bytes a second. Default 512 MiB; negative: no
	// bound.
	BytesPerSecond int64
}

func (c *Config) setDefaults() {
	c.Jobs = cmp.Or(c.Jobs, 2)
	c.Moves = cmp.Or(c.Moves, 4)
	c.UploadBytes = cmp.Or(c.UploadBytes, 128<<20)
	c.Stripes = cmp.Or(c.Stripes, 4)
	c.BytesPerSecond = cmp.Or(c.BytesPerSecond, 512<<20)
}

func (c *Config) validate() error {
	if c.Jobs < 1 || c.Jobs > 64 || c.Stripes < 1 || c.Stripes > 64 {
		return &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%d jobs of %d stripes at a time: each must be 1 to 64", c.Jobs, c.Stripes)}
	}
	if c.Moves < 1 || c.Moves > 64 || c.UploadBytes < pieceBytes {
		return &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%d moves at a time in %d bytes: use 1 to 64 moves and at least 16 MiB", c.Moves, c.UploadBytes)}
	}
	return nil
}

// Service makes the requests of a mover to the metadata service.
type Service interface {
	// Meta makes one request, retried across failovers under one number.
	Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// Stripes repairs stripes for a mover.
type Stripes interface {
	// RebuildChunk reads or computes chunk index of a stripe, and verifies it against the
	// stripe's record. The caller calls release when it no longer uses data.
	RebuildChunk(ctx context.Context, stripe *wire.Stripe, index int, doubtful uint32) (data []byte, crc uint32, release func(), err error)
	// RecodeParity computes a parity chunk only from the data of its stripe, and verifies the
	// data against the record. The caller calls release when it no longer uses data.
	RecodeParity(ctx context.Context, stripe *wire.Stripe, index int) (data []byte, crc uint32, release func(), err error)
	// PutRepaired durably puts the bytes of a chunk under an intent, with the intent's
	// capability.
	PutRepaired(ctx context.Context, stripe *wire.Stripe, intent *wire.Intent, capability, data []byte) error
}

// Deps are what tests replace. Client is required, or else Service, Stripes and CheckStep.
type Deps struct {
	Client *client.Client
	// Service takes the requests. Default: Raw of Client.
	Service Service
	// Stripes repairs chunks. Default: Raw of Client.
	Stripes Stripes
	// CheckStep checks a sealed checkpoint and writes its index. Default: ckpt.CheckStep over
	// Client.
	CheckStep func(ctx context.Context, key client.StepKey) (ckpt.IndexFile, error)
	// Bucket is the object tier; nil: none, and the mover leases none of its jobs.
	Bucket object.Store
	// Open opens a file's current content. Default: Inodes().Open of Client.
	Open func(ctx context.Context, inode moraine.InodeID) (Content, error)
	// Stage copies the evicted ranges within [off, off+n) of the file of a STAGE job back into
	// stripes. It calls pace before it moves so many bytes. Default: StageRange of Stripes, if it
	// has that.
	Stage func(ctx context.Context, job *wire.Job, off, n int64, pace func(ctx context.Context, n int64) error) error
	// Rewrite copies the live bytes of a REWRITE job's stripes into new ones, at the given pace,
	// and returns what it replaced. Default: RewriteStripes of Client.
	Rewrite func(ctx context.Context, job *wire.Job, pace func(ctx context.Context, n int64) error) (rawclient.Rewritten, error)
	// Pace waits until the process may receive or send so many more bytes of chunks and objects.
	// The mover calls it before each piece of work. Default: no limit.
	Pace func(ctx context.Context, bytes int64) error
	// PaceRepair is Pace for repairs. Default: Pace.
	PaceRepair func(ctx context.Context, bytes int64) error
	Clock      clock.Clock
	Log        *slog.Logger
	Metrics    *Metrics
}

// useClient fills in the parts for which the mover uses the client.
func (d *Deps) useClient() {
	c := d.Client
	if c == nil {
		return
	}
	if d.Service == nil {
		d.Service = rawclient.Of(c)
	}
	if d.Stripes == nil {
		d.Stripes = rawclient.Of(c)
	}
	if d.CheckStep == nil {
		d.CheckStep = func(ctx context.Context, key client.StepKey) (ckpt.IndexFile, error) {
			return ckpt.CheckStep(ctx, c, key)
		}
	}
	if d.Rewrite == nil {
		d.Rewrite = rawclient.Of(c).RewriteStripes
	}
	if d.Open == nil {
		d.Open = func(ctx context.Context, inode moraine.InodeID) (Content, error) { return c.Inodes().Open(ctx, inode) }
	}
}

// stager is a client that can stage evicted ranges.
type stager interface {
	// StageRange reads and verifies the evicted ranges within [off, off+n), writes them as
	// stripes and commits these under the job's lease. Before each stripe it calls pace with the
	// bytes that it moves. Stale: the file has new content.
	StageRange(ctx context.Context, job moraine.JobID, epoch uint64, attr *wire.Attr, object *wire.Object, off, n int64,
		pace func(ctx context.Context, n int64) error) error
}

// Mover runs leased jobs.
type Mover struct {
	cfg   Config
	deps  Deps
	limit *rate.Limiter // bytes; nil: none
	// uploads bounds the memory of parts that are being uploaded.
	uploads *limit.Semaphore
	turns   [lanes]chan struct{} // with one slot each: its holder calls Deps.Pace
	early   chan struct{}        // with one slot: its holder checks a step whose ranks still seal
}

// New checks cfg and fills in defaults. It starts no goroutine.
func New(cfg Config, deps Deps) (*Mover, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	deps.useClient()
	if deps.Service == nil {
		return nil, &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument, Err: errors.New("no client")}
	}
	if deps.Stripes == nil {
		return nil, &moraine.Error{Op: "mover.New", Kind: moraine.InvalidArgument, Err: errors.New("nothing repairs stripes")}
	}
	if s, ok := deps.Stripes.(stager); ok && deps.Stage == nil {
		deps.Stage = func(ctx context.Context, job *wire.Job, off, n int64, pace func(context.Context, int64) error) error {
			return s.StageRange(ctx, moraine.JobID(job.GetId()), job.GetLeaseEpoch(), job.GetMove().GetAttr(), job.GetMove().GetObject(), off, n, pace)
		}
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
	deps.Clock = cmp.Or[clock.Clock](deps.Clock, clock.System{})
	deps.Log = cmp.Or(deps.Log, slog.New(slog.DiscardHandler))
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	m := &Mover{cfg: cfg, deps: deps, uploads: limit.NewSemaphore(cfg.UploadBytes, limit.Resource{Name: "memory of uploads",
		Patience: uploadPatience, Advice: "the bucket is slow or does not answer", Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)})}
	m.early = make(chan struct{}, 1)
	for i := range m.turns {
		m.turns[i] = make(chan struct{}, 1)
	}
	if cfg.BytesPerSecond > 0 {
		m.limit = rate.NewLimiter(rate.Limit(cfg.BytesPerSecond), 2*moraine.MaxChunkSize)
	}
	return m, nil
}

// lane separates kinds of work that must not wait for each other: a long flush must not delay a
// repair.
type lane int

const (
	laneRepair  lane = iota
	laneBalance      // moves between devices, and rewrites of mostly dead stripes
	laneMove         // the object tier
	laneCommit       // checks of checkpoints
	lanes
)

func laneOf(k wire.JobKind) lane {
	switch {
	case slices.Contains(balanceKinds, k):
		return laneBalance
	case slices.Contains(moveKinds, k):
		return laneMove
	case slices.Contains(commitKinds, k):
		return laneCommit
	}
	return laneRepair
}

// pace waits until the process may receive and send so many more bytes. Within a lane one piece
// of work asks after the other. Otherwise many would start at once, and their parallel waiting
// would leave little to the process's clients. Work that moves no bytes waits for no turn. The
// commit of a checkpoint waits for nothing: a user waits for it, and it moves hardly any bytes.
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
