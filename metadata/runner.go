package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// runnerJobs is how many of the leader's own jobs of each kind advance in turn.
const runnerJobs = 4

// runJobs runs the jobs that only change metadata, piece by piece, until ctx
// ends. Each piece is one command, so that a job goes on under the next leader
// where this one left it.
func (l *leader) runJobs(ctx context.Context) {
	for {
		ran, err := l.runPieces(ctx)
		if err != nil && ctx.Err() == nil {
			l.deps.Log.Warn("a piece of a job failed", "err", err)
		}
		var more bool
		if ran == 0 || err != nil {
			more = l.pause(ctx, l.runnable, jobPoll)
		} else {
			more = l.pause(ctx, nil, time.Duration(ran)*time.Second/time.Duration(l.cfg.RunnerPieces))
		}
		if !more {
			return
		}
	}
}

// pause waits for d, or until p (may be nil) is set. It returns false when ctx
// has ended.
func (l *leader) pause(ctx context.Context, p poke, d time.Duration) bool {
	if d > 0 {
		select {
		case <-p:
		case <-l.deps.Clock.After(d):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// runPieces runs one piece of each of a few jobs and returns how many it ran.
func (l *leader) runPieces(ctx context.Context) (int, error) {
	var jobs []*wire.Job
	err := l.store.View(func(r state.Reader, _ uint64) error {
		for _, kind := range leaderJobs {
			some, err := l.machine.PendingJobs(r, []wire.JobKind{kind}, runnerJobs)
			if err != nil {
				return err
			}
			jobs = append(jobs, some...)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for i, job := range jobs {
		_, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_RunJob{
			RunJob: &statepb.RunJob{Id: job.Id, Limit: uint32(l.cfg.RunnerKeys)}}})
		if err != nil {
			return i, err
		}
		l.deps.Metrics.JobPieces.Inc()
	}
	return len(jobs), nil
}
