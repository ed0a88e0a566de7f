package metadata

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// runnerJobs is the number of the leader's jobs of each kind that advance in turn.
	runnerJobs = 4
	// maxWaitingJobs bounds the jobs that wait for another try. Until there is room, pieces of
	// further jobs are retried in vain.
	maxWaitingJobs = 64
	// maxPutOff is the longest pause of a job whose pieces are refused.
	maxPutOff = time.Minute
)

// runner runs the jobs that only change metadata, piece by piece. Each piece is one command, so
// that the next leader continues a job where this one stopped.
type runner struct {
	*lead.Term
	cfg      *Config
	log      *commandLog
	runnable lead.Poke // there may be a job to run
	// waits are goroutines that wait until a refused job may be tried again. The runner skips that
	// job meanwhile and runs the others.
	waits   sync.WaitGroup
	mu      sync.Mutex
	waiting map[uint64]struct{} // jobs
	// refused counts how often in a row the pieces of a job were refused.
	refused map[uint64]int
}

func newRunner(t *lead.Term, cfg *Config, log *commandLog) *runner {
	return &runner{Term: t, cfg: cfg, log: log, runnable: lead.NewPoke(), waiting: map[uint64]struct{}{}, refused: map[uint64]int{}}
}

// runJobs runs the leader's own jobs until ctx ends.
func (r *runner) runJobs(ctx context.Context) {
	defer r.waits.Wait()
	for {
		ran, err := r.runPieces(ctx)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("a piece of a job failed", "err", err)
		}
		var more bool
		if ran == 0 || err != nil {
			more = r.Pause(ctx, r.runnable, lead.JobPoll)
		} else {
			more = r.Pause(ctx, nil, time.Duration(ran)*time.Second/time.Duration(r.cfg.RunnerPieces))
		}
		if !more {
			return
		}
	}
}

// runPieces runs one piece of each of a few jobs and returns the number. A failing job does not
// stop the others.
func (r *runner) runPieces(ctx context.Context) (ran int, err error) {
	jobs, err := r.ready()
	if err != nil {
		return 0, err
	}
	var failed []error
	for _, job := range jobs {
		refused, err := r.piece(ctx, job)
		switch {
		case ctx.Err() != nil:
			return ran, ctx.Err()
		case err == errMet:
		case err != nil:
			failed = append(failed, err)
		case refused != nil:
			r.putOff(ctx, job, refused)
			ran++
		default:
			delete(r.refused, job)
			r.Metrics.JobPieces.Inc()
			ran++
		}
	}
	return ran, errors.Join(failed...)
}

// ready returns the next jobs to run, a few of each kind.
func (r *runner) ready() (ready []uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.Store.View(func(s kvtx.Reader, _ uint64) error {
		for _, kind := range leaderJobs {
			some, err := jobs.PendingJobs(r.Machine.View(s), []wire.JobKind{kind}, runnerJobs+len(r.waiting))
			if err != nil {
				return err
			}
			n := 0
			for _, job := range some {
				if _, waits := r.waiting[job.Id]; !waits && n < runnerJobs {
					ready = append(ready, job.Id)
					n++
				}
			}
		}
		return nil
	})
	return ready, err
}

// errMet says that a piece met a delegation, and runs again after it.
var errMet = errors.New("the piece met a delegation")

// piece runs one piece of a job. refused is the state's reason for refusing it.
func (r *runner) piece(ctx context.Context, job uint64) (refused, err error) {
	cmd := r.log.own(&statepb.Command{Op: &statepb.Command_RunJob{
		RunJob: &statepb.RunJob{Id: job, Limit: uint32(r.cfg.RunnerKeys)}}})
	res, err := r.log.proposer.propose(ctx, nil, cmd, nil)
	if err != nil {
		return nil, err
	}
	if len(res.Met) > 0 {
		r.passOver(job, func() {
			if err := r.log.leases.Await(ctx, res.Met); err != nil && ctx.Err() == nil {
				r.Log.Warn("a job waits for a directory that a session has for itself", "job", moraine.JobID(job), "err", err)
				lead.Sleep(ctx, r.Clock, lead.JobPoll)
			}
		})
		return nil, errMet
	}
	if e := res.Response.GetError(); e != nil {
		return transport.ErrorFromWire(e), nil
	}
	return nil, nil
}

// putOff skips a refused job for a time that grows with each refusal in a row. The next piece may
// be refused too, and the other jobs of its kind must get their turn.
func (r *runner) putOff(ctx context.Context, job uint64, why error) {
	times := r.refused[job]
	if len(r.refused) < maxWaitingJobs || times > 0 {
		r.refused[job] = times + 1
	}
	d := min(lead.JobPoll<<min(times, 10), maxPutOff)
	r.Log.Warn("a piece of a job was refused", "job", moraine.JobID(job), "again", d, "err", why)
	r.passOver(job, func() { lead.Sleep(ctx, r.Clock, d) })
}

// passOver skips a job until wait returns.
func (r *runner) passOver(job uint64, wait func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) >= maxWaitingJobs {
		return
	}
	r.waiting[job] = struct{}{}
	r.waits.Go(func() {
		wait()
		r.mu.Lock()
		delete(r.waiting, job)
		r.mu.Unlock()
		r.runnable.Set()
	})
}
