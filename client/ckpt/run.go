package ckpt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// RunOptions says who opens a run. A save needs Rank and World.
type RunOptions struct {
	// Launch is the start that this process belongs to: see LaunchFromEnv. A launch that the run
	// does not know becomes its next attempt and fences the earlier ones.
	Launch Launch
	// Takeover makes the next attempt even while the current one has live sessions. Without it
	// the service refuses that with Busy, unless Launch is of the same job and no lower restart.
	Takeover bool
	// ReadOnly joins no attempt: it is for listing, resolving and reading. Launch is not needed.
	ReadOnly bool
	// Rank of World.
	Rank, World uint32
	// Agent is the socket of the node's agent; see agentproto.DefaultSocket. Saves then go into
	// the agent's memory and survive the death of this process. Empty: this process keeps and
	// writes them itself. StagingBytes is not used with an agent.
	Agent string
	// StagingBytes bounds the memory into which saves are copied. It needs room for two parts so
	// that a save can begin while the previous one is being written. The memory is taken as
	// needed and kept. Default 16 GiB.
	StagingBytes int64
	// Prefault is how many bytes of it OpenRun allocates at once, so that the first save is as
	// fast as the next. With an agent it is the size of one part, and the agent makes the slots of
	// this rank. Default 0.
	Prefault int64
	// Pace, if not nil, is called before bytes are given to the cluster, a few MiB at a time, and may
	// delay them. Its error ends the write. Several goroutines call it.
	Pace func(ctx context.Context, bytes int) error
	// Clock, Log and Metrics default to the machine's clock, no log, and
	// metrics that are not registered anywhere.
	Clock   moraine.Clock
	Log     *slog.Logger
	Metrics *Metrics
}

const defaultStaging = 16 << 30

func (o *RunOptions) setDefaults() {
	o.StagingBytes = cmp.Or(o.StagingBytes, defaultStaging)
	o.World = cmp.Or(o.World, 1)
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.System{})
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
}

func (o *RunOptions) validate(path string) error {
	switch {
	case !o.ReadOnly && o.Launch.Name == "":
		return invalid("ckpt.OpenRun", path, errors.New(
			"no launch is named: set MORAINE_LAUNCH to a string that all ranks of one launch share"))
	case o.World > MaxWorld:
		return invalid("ckpt.OpenRun", path, fmt.Errorf("%d ranks; %d at most", o.World, MaxWorld))
	case o.Rank >= o.World:
		return invalid("ckpt.OpenRun", path, fmt.Errorf("rank %d of %d", o.Rank, o.World))
	case o.StagingBytes < segmentSize:
		return invalid("ckpt.OpenRun", path, fmt.Errorf("staging memory of %d bytes; %d at least", o.StagingBytes, segmentSize))
	}
	return nil
}

// Run is an open training run, as one rank of one attempt. Its methods may be
// called concurrently.
type Run struct {
	c       cluster
	opts    RunOptions
	path    string
	id      moraine.InodeID
	attempt uint32
	arena   *arena
	agent   *agentLink // nil: none

	// ctx ends the writers of saves; it lives until Close.
	ctx     context.Context
	cancel  context.CancelFunc
	writers sync.WaitGroup
	// watchers are those of Part.Reached.
	watchers sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	unsealed []*Part // begun and not sealed
	failures failures
}

// openRun is OpenRun over any cluster.
func openRun(ctx context.Context, c cluster, path string, opts RunOptions) (*Run, error) {
	opts.setDefaults()
	path, err := address.CleanPath(path)
	if err != nil {
		return nil, invalid("ckpt.OpenRun", path, err)
	}
	if err := opts.validate(path); err != nil {
		return nil, err
	}
	dir, name := splitPath(path)
	if name == "" {
		return nil, invalid("ckpt.OpenRun", path, errors.New("a run is a directory below the root"))
	}
	if opts.Agent != "" && !opts.ReadOnly {
		return openRunAtAgent(ctx, c, path, opts)
	}
	parent, err := runParent(ctx, c, dir, opts.ReadOnly)
	if err != nil {
		return nil, err
	}
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{
		Parent: uint64(parent), Name: name, Launch: opts.Launch.Name, Job: opts.Launch.Job,
		Restart: opts.Launch.Restart, Takeover: opts.Takeover, ReadOnly: opts.ReadOnly,
	}}})
	if err != nil {
		return nil, err
	}
	r := &Run{c: c, opts: opts, path: path, arena: newArena(opts.StagingBytes, opts.Metrics, opts.Log),
		id: moraine.InodeID(resp.GetRun().GetRun().GetId())}
	if !opts.ReadOnly {
		r.attempt = resp.GetRun().GetAttempt()
	}
	if err := r.arena.prefault(opts.Prefault); err != nil {
		r.arena.close()
		return nil, err
	}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r, nil
}

// openRunAtAgent opens the run through the agent, whose session joins the attempt.
func openRunAtAgent(ctx context.Context, c cluster, path string, opts RunOptions) (*Run, error) {
	open := agentproto.Open{Run: path, Rank: opts.Rank, World: opts.World,
		Launch: opts.Launch.Name, Job: opts.Launch.Job, Restart: opts.Launch.Restart, Takeover: opts.Takeover}
	if opts.Prefault > 0 {
		open.Bytes = slotBytes(opts.Prefault)
	}
	link, reply, err := dialAgent(ctx, opts.Agent, open)
	if err != nil {
		return nil, err
	}
	r := &Run{c: c, opts: opts, path: path, agent: link, id: moraine.InodeID(reply.RunID), attempt: reply.Attempt,
		arena: newArena(0, opts.Metrics, opts.Log)}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r, nil
}

// runParent finds the directory with the runs. For a reader it does not create it.
func runParent(ctx context.Context, c cluster, dir string, readOnly bool) (moraine.InodeID, error) {
	if !readOnly {
		return c.mkdirAll(ctx, dir)
	}
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: dir, Follow: true}}})
	if err != nil {
		return 0, err
	}
	if w := resp.GetWalk(); w.GetFound() {
		return moraine.InodeID(w.GetAttr().GetInode()), nil
	}
	return 0, &moraine.Error{Op: "ckpt.OpenRun", Ref: dir, Kind: moraine.NotFound}
}

// ID returns the inode of the run's directory.
func (r *Run) ID() moraine.InodeID { return r.id }

// Attempt returns the number of the attempt that this process belongs to; 0 for a reader.
func (r *Run) Attempt() uint32 { return r.attempt }

// WaitStep waits until a step of the run's attempt is committed at level memory, nvme or object,
// whoever saved it. For level object it asks for the flush of the step. It fails with Aborted if the step never will be. For a reader it is a step of the
// current attempt, also if no rank has begun it yet, or a committed step of the branch that Resolve
// searches. With an error it returns the step as the service last reported it; its State is empty
// if there was no report.
func (r *Run) WaitStep(ctx context.Context, step uint64, level moraine.Level) (StepInfo, error) {
	if r.attempt == 0 {
		return r.waitStepOfBranch(ctx, step, level)
	}
	return waitStep(ctx, r.c, r.opts.Clock, stepKeyOf(r.id, r.attempt, step), level)
}

// Stop ends the writing of all saves at once, and reports nothing to the service: another process may go
// on with the sealed ones. Close must follow.
func (r *Run) Stop() { r.cancel() }

// Close waits until all sealed saves have been written, or ctx ends. It aborts unsealed saves
// of this rank, cancels what remains, and frees the staging memory. It returns ctx's error if
// it did not wait to the end. With an agent it does not wait for sealed saves: the agent writes
// them.
func (r *Run) Close(ctx context.Context) error {
	r.mu.Lock()
	unsealed := slices.Clone(r.unsealed)
	wasClosed := r.closed
	r.closed = true
	r.mu.Unlock()
	if wasClosed {
		return nil
	}
	for _, s := range unsealed {
		s.Abort(errors.New("the run was closed before the step was sealed"))
	}
	if r.agent != nil {
		r.cancel() // the agent goes on with what is sealed
	}
	ended := make(chan struct{})
	go func() { r.writers.Wait(); close(ended) }()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.cancel()
	<-ended
	r.watchers.Wait()
	r.arena.close()
	if r.agent != nil {
		r.agent.close()
	}
	return err
}
