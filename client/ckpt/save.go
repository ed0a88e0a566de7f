package ckpt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/busy"
	"github.com/morainefs/moraine/transport/wire"
)

// BeginOptions are the options of one save. None of them makes ranks store once what they have in common: only
// agents do (RunOptions.Agent).
type BeginOptions struct {
	// SealTimeout aborts the step if no rank has sealed its part for this long. All ranks should
	// use the same value. Default 10 min; at most a week; whole milliseconds count.
	SealTimeout time.Duration
	// Level is where the service has the part's bytes when it accepts them: memory, of as many
	// hosts as the scheme has chunks, or nvme. From memory they go on to nvme by themselves, but only
	// after repair if a host ends before: see docs/semantics/checkpoints.md. Default: nvme, and
	// memory for a step that stays in memory by the policy of the run (StepInfo.StaysInMemory). If a
	// rank gives nvme, the step does not stay there.
	Level moraine.Level
	// Bytes is how many bytes of tensors and blobs the part will have at most. The service reserves
	// them: Begin fails with QuotaExceeded or NoSpace if they do not fit. With an agent they must be
	// given: Begin also fails at once if the node's arenas have no room for them. 0: unknown.
	Bytes int64
	// Busy says what happens while earlier saves still take the memory. Default busy.Wait.
	Busy busy.Policy
	// Lent says that all bytes of the part are lent (LendTensor, LendBlob). Such a part takes no
	// staging memory, so other saves may be between Begin and Seal at the same time.
	Lent bool
}

const defaultSealTimeout, maxSealTimeout = 10 * time.Minute, wire.MaxSealTimeoutMillis * time.Millisecond

// Part is one rank's part of one step, from Begin until it is written after Seal. One goroutine
// calls AddTensor, AddBlob and Seal; any goroutine may call the other methods.
type Part struct {
	run  *Run
	step uint64
	opts BeginOptions

	// adding is locked while bytes are copied. So a save that fails or is aborted
	// meanwhile does not free the staging memory during the copy.
	adding sync.Mutex
	stage  stage
	slices map[string][]stagedTensor // by name; several slices go into several files
	blobs  []stagedBlob
	shared []sharedMeta // slices that other ranks store
	stall  time.Duration

	announced chan struct{} // closed when the service has answered that the rank has begun
	sealOnce  sync.Once
	sealed    chan struct{} // closed by Seal, by Abort and by failure
	endCause  error         // set before sealed is closed, by Abort and by failure
	aborted   bool          // set before sealed is closed, by Abort
	reported  bool          // this part's failure aborted the step; set before done is closed

	mu  sync.Mutex
	err error // why the part cannot be written, as soon as known

	// done is closed when the part is sealed in the cluster, or never will be. err is final then,
	// and written is how long it took.
	done    chan struct{}
	written time.Duration
	// progress counts the bytes of the part's files that the cluster has been given, of total.
	progress, total atomic.Int64
}

type stagedTensor struct {
	Tensor // without Data
	bytes  *staged
}

type stagedBlob struct {
	name  string
	bytes *staged
}

// Begin starts this rank's part of a step. If BeginOptions.Bytes is given it waits, 1 s at most, until
// the service has reserved them, and fails if it refuses. Otherwise it does not wait: a later call
// returns the service's error (a newer attempt, a step that exists). With an agent it waits until
// the arenas of the node have room, unless opts say otherwise. Only one save may be between Begin
// and Seal, unless BeginOptions.Lent is set; more may be written to the cluster meanwhile. Begin
// does not keep ctx.
func (r *Run) Begin(ctx context.Context, step uint64, opts BeginOptions) (*Part, error) {
	if opts.SealTimeout == 0 {
		opts.SealTimeout = defaultSealTimeout
	}
	s := &Part{run: r, step: step, opts: opts, stage: stage{arena: r.arena, metrics: r.opts.Metrics},
		slices: make(map[string][]stagedTensor), announced: make(chan struct{}), sealed: make(chan struct{}), done: make(chan struct{})}
	if err := ctx.Err(); err != nil {
		return nil, s.wrap(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case opts.SealTimeout < time.Millisecond || opts.SealTimeout > maxSealTimeout:
		return nil, invalid("ckpt.Begin", s.ref(), fmt.Errorf("a seal timeout of %v: it must be from 1 ms to %v", opts.SealTimeout, maxSealTimeout))
	case opts.Bytes < 0 || opts.Bytes > agentproto.MaxReserve:
		return nil, invalid("ckpt.Begin", s.ref(), fmt.Errorf("a part of %d bytes: it must be from 0 to %d", opts.Bytes, agentproto.MaxReserve))
	case opts.Level != 0 && opts.Level != moraine.Memory && opts.Level != moraine.NVMe:
		return nil, invalid("ckpt.Begin", s.ref(), fmt.Errorf("a part cannot be saved at level %s: use memory or nvme", opts.Level))
	case r.closed:
		return nil, s.wrap(moraine.Canceled)
	case r.opts.ReadOnly:
		return nil, s.wrap(moraine.ReadOnly)
	case opts.Busy == busy.Supersede && r.agent == nil:
		return nil, invalid("ckpt.Begin", s.ref(), errors.New("busy.Supersede needs an agent: start `moraine agent` on the node and set RunOptions.Agent"))
	case opts.Busy == busy.Skip && r.agent == nil && !r.arena.hasRoom(opts.Bytes):
		return nil, s.wrap(&moraine.Error{Op: "ckpt.Begin", Kind: moraine.Busy, Err: errors.New("earlier saves are still being written from the staging memory")})
	case !opts.Lent && len(r.unsealed) > 0:
		return nil, invalid("ckpt.Begin", s.ref(), fmt.Errorf("step %d has not been sealed yet", r.unsealed[0].step))
	}
	r.unsealed = append(r.unsealed, s)
	if r.agent == nil {
		r.writers.Go(func() { s.write(r.ctx) })
		r.mu.Unlock()
		err := s.reserved(ctx)
		r.mu.Lock()
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	r.mu.Unlock() // Close ends the wait for memory
	err := r.beginAtAgent(ctx, s)
	r.mu.Lock()
	if err == nil && r.closed {
		err = s.wrap(moraine.Canceled) // the connection to the agent ends, and with it the part
	}
	if err != nil {
		r.endsBegin(s)
		return nil, err
	}
	r.writers.Go(func() { s.follow(r.ctx) })
	return s, nil
}

// announceWait bounds how long Begin waits for the service to reserve the bytes of a part. A save goes
// on without the answer: training must not stand still while the service elects a leader.
const announceWait = time.Second

// reserved waits until the service has reserved the bytes of a part, and returns why it refused.
func (s *Part) reserved(ctx context.Context) error {
	if s.opts.Bytes == 0 {
		return nil
	}
	select {
	case <-s.announced:
		return s.failure()
	case <-s.run.opts.Clock.After(announceWait):
		return nil
	case <-ctx.Done():
		s.Abort(ctx.Err())
		return s.wrap(ctx.Err())
	}
}

// endsBegin lets the next save begin. The caller holds the mutex.
func (r *Run) endsBegin(s *Part) {
	r.unsealed = slices.DeleteFunc(r.unsealed, func(p *Part) bool { return p == s })
}

// Seal completes the part: nothing can be added. Without an agent the run writes it to the
// cluster in the background, and until Wait has returned the bytes are at no level: they are only
// in the memory of this process. With an agent the part is at level local when Seal returns: the
// agent writes it to the cluster, also if this process dies.
func (s *Part) Seal(ctx context.Context) error {
	began := s.run.opts.Clock.Now()
	defer s.stalled(began)
	s.adding.Lock()
	defer s.adding.Unlock()
	if err := s.open(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return s.wrap(err)
	}
	if err := checkFiles(s.tensorFiles() + len(s.blobs)); err != nil {
		return invalid("ckpt.Seal", s.ref(), err)
	}
	if s.run.agent != nil {
		if err := s.sealAtAgent(ctx); err != nil {
			s.end(err)
			return s.wrap(err)
		}
	}
	s.end(nil)
	s.run.opts.Metrics.StallSeconds.Observe((s.stall + s.run.opts.Clock.Now().Sub(began)).Seconds())
	return nil
}

// tensorFiles returns how many safetensors files the part needs: one, or the largest number of
// slices of a tensor.
func (s *Part) tensorFiles() int {
	n := 1
	for _, list := range s.slices {
		n = max(n, len(list))
	}
	return n
}

// Abort ends the step for all ranks, unless the part is sealed already. Callers of Wait get
// cause.
func (s *Part) Abort(cause error) {
	if cause == nil {
		cause = errors.New("the caller gave no reason")
	}
	s.endAs(cause, true)
}

// end closes s.sealed once, and lets the next save begin.
func (s *Part) end(cause error) { s.endAs(cause, false) }

func (s *Part) endAs(cause error, aborted bool) {
	s.sealOnce.Do(func() {
		s.endCause, s.aborted = cause, aborted
		s.run.mu.Lock()
		s.run.endsBegin(s)
		s.run.mu.Unlock()
		close(s.sealed)
	})
}

// open fails if the part accepts nothing more.
func (s *Part) open() error {
	if err := s.failure(); err != nil {
		return err
	}
	select {
	case <-s.sealed:
		if s.endCause != nil {
			return s.wrap(fmt.Errorf("%w: %w", moraine.Aborted, s.endCause))
		}
		return invalid("ckpt.Part", s.ref(), errors.New("the part is sealed"))
	default:
		return nil
	}
}

// failure returns why the part cannot be written, if that is known.
func (s *Part) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Part) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		s.run.opts.Metrics.PartsFailed.WithLabelValues(moraine.KindOf(err).String()).Inc()
	}
}

func (s *Part) stalled(since time.Time) { s.stall += s.run.opts.Clock.Now().Sub(since) }

// Stall returns how long the trainer has stood still for this save: the time spent in
// AddTensor, AddBlob and Seal. Only the goroutine that calls those may call it.
func (s *Part) Stall() time.Duration { return s.stall }

// Done returns a channel that is closed when the part is durable and sealed in the cluster, or
// never will be. Wait returns which.
func (s *Part) Done() <-chan struct{} { return s.done }

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Part) ref() string {
	return fmt.Sprintf("%s step %d (attempt %d)", s.run.path, s.step, s.run.attempt)
}

// wrap adds the save to an error of any type.
func (s *Part) wrap(err error) error {
	kind := moraine.KindOf(err)
	switch {
	case errors.Is(err, context.Canceled):
		kind = moraine.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = moraine.Timeout
	}
	return &moraine.Error{Op: "ckpt.Part", Ref: s.ref(), Kind: kind, Err: err}
}
