package mover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// leaseWait is how long the service delays the reply to a request for jobs.
	leaseWait = 10 * time.Second
	// The mover repeats a failed request for jobs after pauses that double from firstPause to
	// lastPause.
	firstPause = 200 * time.Millisecond
	lastPause  = 10 * time.Second
	// The mover renews a lease when a renewPart-th of it has passed. It stops the
	// job when all but a marginPart-th has passed without an answer.
	renewPart  = 3
	marginPart = 5
	// The mover also renews a job of reportBytes or more at each reportPart-th of it. So a job
	// shows progress even if it ends before a renewal is due.
	reportBytes = 4 * pieceBytes
	reportPart  = 4
	// commits is how many checkpoints a mover checks at a time.
	commits = 4
)

var (
	kinds        = []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_READ_TRACKER}
	commitKinds  = []wire.JobKind{wire.JobKind_JOB_KIND_COMMIT_STEP}
	balanceKinds = []wire.JobKind{wire.JobKind_JOB_KIND_REBALANCE, wire.JobKind_JOB_KIND_REWRITE}
)

// errLeaseLost is the cause of a job's context once its lease is lost.
var errLeaseLost = &moraine.Error{Op: "mover", Kind: moraine.Fenced, Err: errors.New("the lease was lost")}

// Run leases and runs jobs until ctx ends; it returns nil once all work has stopped. Another
// mover leases unfinished jobs when their leases have expired.
func (m *Mover) Run(ctx context.Context) error {
	var lanes sync.WaitGroup
	defer lanes.Wait()
	// A long flush must not delay a repair: each lane has its own slots.
	if m.deps.Bucket != nil {
		lanes.Go(func() { m.runLane(ctx, moveKinds, m.cfg.Moves) })
	}
	// Nor must moves between devices, or rewrites of mostly dead stripes, for which no program
	// waits.
	lanes.Go(func() { m.runLane(ctx, balanceKinds, 1) })
	// The commit of a checkpoint of many ranks waits for them.
	lanes.Go(func() { m.runLane(ctx, commitKinds, commits) })
	m.runLane(ctx, kinds, m.cfg.Jobs)
	return nil
}

// runLane leases and runs jobs of some kinds, n at a time, until ctx ends.
func (m *Mover) runLane(ctx context.Context, kinds []wire.JobKind, n int) {
	var jobs sync.WaitGroup
	defer jobs.Wait()
	slots := make(chan struct{}, n)
	pause := firstPause
	for {
		n := take(ctx, slots)
		if n == 0 {
			return
		}
		asked := m.deps.Clock.Now()
		leased, term, err := m.lease(ctx, kinds, n)
		for range n - len(leased) {
			<-slots
		}
		for _, job := range leased {
			jobs.Go(func() {
				defer func() { <-slots }()
				m.runJob(ctx, job, asked, term)
			})
		}
		if err == nil {
			pause = firstPause
			continue
		}
		if ctx.Err() != nil {
			return
		}
		m.deps.Log.Debug("could not lease jobs", "err", err)
		select {
		case <-m.deps.Clock.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, lastPause)
	}
}

// take fills free slots, at least one, and returns how many; 0 once ctx ends.
func take(ctx context.Context, slots chan struct{}) int {
	if ctx.Err() != nil {
		return 0
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n := 1; ; n++ {
		select {
		case slots <- struct{}{}:
		default:
			return n
		}
	}
}

// lease requests up to n jobs. term is how long the leases last, at least from the moment of
// the request.
func (m *Mover) lease(ctx context.Context, kinds []wire.JobKind, n int) (jobs []*wire.Job, term time.Duration, err error) {
	req := &wire.LeaseJobs{Kinds: kinds, Max: uint32(n), WaitMillis: uint64(leaseWait.Milliseconds())}
	if m.deps.Bucket != nil {
		req.Bucket, req.Prefix = m.deps.Bucket.Name(), m.deps.Bucket.Prefix()
		if t, ok := m.deps.Bucket.Known(); ok {
			req.Traits = &wire.BucketTraits{Bucket: m.deps.Bucket.URL(), WholeCrc: t.WholeCRC, IfNoneMatch: t.IfNoneMatch, IfMatch: t.IfMatch,
				IfMatchDelete: t.IfMatchDelete, Versioned: t.Versioned}
		}
	}
	resp, err := m.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: req}})
	if err != nil {
		return nil, 0, err
	}
	reply := resp.GetJobs()
	jobs = reply.GetJobs()
	if len(jobs) > n {
		return nil, 0, &moraine.Error{Op: "mover.lease", Kind: moraine.Internal, Err: fmt.Errorf("received %d jobs, requested %d", len(jobs), n)}
	}
	return jobs, time.Duration(reply.GetLeaseMillis()) * time.Millisecond, nil
}

// work is one leased job in progress.
type work struct {
	*Mover
	job         *wire.Job
	done, total atomic.Uint64 // units
	report      chan struct{} // has a value when a part of a large job is done
	text        string        // the result of a READ_TRACKER
	// leaseEnd is until when the lease is certainly valid.
	leaseEnd atomic.Pointer[time.Time]
}

// runJob runs one job while another goroutine renews its lease. It then reports the result,
// unless the lease was lost or the mover stops.
func (m *Mover) runJob(ctx context.Context, job *wire.Job, asked time.Time, term time.Duration) {
	w := &work{Mover: m, job: job, report: make(chan struct{}, 1)}
	w.total.Store(job.GetTotal())
	end := endOf(asked, term)
	w.leaseEnd.Store(&end)
	m.deps.Metrics.Running.Inc()
	defer m.deps.Metrics.Running.Dec()
	jobCtx, cancel := context.WithCancelCause(client.ForJob(ctx, moraine.JobID(job.GetId())))
	if l := laneOf(job.GetKind()); l != laneRepair && l != laneCommit {
		jobCtx = client.WithLowPriority(jobCtx)
	}
	keeper := make(chan struct{})
	go func() {
		defer close(keeper)
		w.keepLease(jobCtx, cancel, asked, term)
	}()
	err := w.do(jobCtx)
	lost := context.Cause(jobCtx) == error(errLeaseLost)
	cancel(nil)
	<-keeper
	kind := kindName(job.GetKind())
	m.deps.Metrics.JobSeconds.WithLabelValues(kind).Observe(m.deps.Clock.Now().Sub(asked).Seconds())
	switch {
	case ctx.Err() != nil:
		return
	case lost:
		m.deps.Metrics.LeasesLost.Inc()
		m.deps.Metrics.Jobs.WithLabelValues(kind, outcomeLost).Inc()
		m.deps.Log.Warn("lost the lease of a job", "job", job.GetId(), "kind", kind)
		return
	}
	outcome := outcomeDone
	finish := &wire.FinishJob{Id: job.GetId(), LeaseEpoch: job.GetLeaseEpoch(), Text: w.text}
	if err != nil {
		outcome, finish.Error, finish.Kind = outcomeFailed, wire.Text(err.Error(), wire.MaxText), uint32(moraine.KindOf(err))
		m.deps.Log.Warn("a job failed", "job", job.GetId(), "kind", kind, "err", err)
	}
	m.deps.Metrics.Jobs.WithLabelValues(kind, outcome).Inc()
	_, err = m.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: finish}})
	if err != nil && ctx.Err() == nil && !leaseGone(err) {
		m.deps.Log.Warn("could not end a job; its lease will expire", "job", job.GetId(), "kind", kind, "err", err)
	}
}

func (w *work) do(ctx context.Context) error {
	if err := w.pace(ctx, 0); err != nil {
		return err
	}
	switch w.job.GetKind() {
	case wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_REBALANCE:
		return w.repair(ctx)
	case wire.JobKind_JOB_KIND_COMMIT_STEP:
		return w.commitStep(ctx)
	case wire.JobKind_JOB_KIND_READ_TRACKER:
		return w.readTracker(ctx)
	case wire.JobKind_JOB_KIND_REWRITE:
		return w.rewrite(ctx)
	}
	if slices.Contains(moveKinds, w.job.GetKind()) {
		return w.move(ctx)
	}
	return &moraine.Error{Op: "mover", Kind: moraine.Unimplemented, Err: fmt.Errorf("jobs of kind %s", w.job.GetKind())}
}

// keepLease renews the lease until ctx ends. It cancels the job as soon as another mover may
// have the lease. It counts the term from when it sent the last renewal, because the service
// starts its clock no earlier.
func (w *work) keepLease(ctx context.Context, cancel context.CancelCauseFunc, renewed time.Time, term time.Duration) {
	clk := w.deps.Clock
	for {
		end := endOf(renewed, term)
		w.leaseEnd.Store(&end)
		next := renewed.Add(term / renewPart)
		select {
		case <-clk.After(next.Sub(clk.Now())):
		case <-w.report:
		case <-ctx.Done():
			return
		}
		asked := clk.Now()
		ok, err := w.renew(ctx, end.Sub(asked))
		switch {
		case ctx.Err() != nil:
			return
		case ok:
			renewed = asked
		default:
			w.deps.Log.Debug("could not renew a lease", "job", w.job.GetId(), "err", err)
			cancel(errLeaseLost)
			return
		}
	}
}

// advance counts bytes of a job as done.
func (w *work) advance(n uint64) {
	done, part := w.done.Add(n), w.total.Load()/reportPart
	if part < reportBytes/reportPart || done/part == (done-n)/part {
		return
	}
	select {
	case w.report <- struct{}{}:
	default: // a running renewal will report it
	}
}

// endOf returns until when to trust a lease that was requested at a time.
func endOf(asked time.Time, term time.Duration) time.Time { return asked.Add(term - term/marginPart) }

// renew requests the renewal of the lease, again and again without an answer, for at most
// within.
func (w *work) renew(ctx context.Context, within time.Duration) (bool, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	answer := make(chan error, 1)
	go func() { answer <- w.askRenewal(ctx) }()
	select {
	case err := <-answer:
		return err == nil, err
	case <-w.deps.Clock.After(within):
		stop()
		return false, <-answer
	}
}

func (w *work) askRenewal(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		_, err := w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RenewJob{RenewJob: &wire.RenewJob{
			Id: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch(), Done: w.done.Load(), Total: w.total.Load()}}})
		if err == nil || leaseGone(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-w.deps.Clock.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// leaseGone reports whether an error means that another mover may have the job.
func leaseGone(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.Fenced, moraine.NotFound, moraine.Stale:
		return true
	}
	return false
}
