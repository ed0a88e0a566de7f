package repair

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/content"
	statefleet "github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// The leader inspects rewriteLooks records of the state at once, with rewritePause between. A
	// pass through a large namespace is therefore never one long read, and leaves the processor to
	// others most of the time.
	rewriteLooks = 2048
	rewritePause = 100 * time.Millisecond
	// rewriteInodes is the number of inodes inspected for files per turn.
	rewriteInodes = 512
	// rewriteWindow bounds the stripes of one file whose references are counted together. A larger
	// file is counted window by window.
	rewriteWindow = 1 << 13
	// rewriteShared bounds the stripes in several files or windows that are kept until all
	// references were seen. rewriteParts bounds the files or windows of each, and
	// rewriteSharedParts those of all.
	rewriteShared, rewriteParts, rewriteSharedParts = 1 << 14, 2 * content.MaxPackFiles, 1 << 18
	// rewriteLeast is the smallest number of dead bytes in a stripe that is worth a commit.
	rewriteLeast = 64 << 10
	// rewriteSmall is the size up to which copied stripes count as small: they take twice the room
	// of coded ones, and a record each. A file's small stripes are merged if that leaves
	// rewriteFewer times fewer, by commits of rewriteRuns extents. The mover knows how much fits
	// into a stripe, and merges if they become at least half that factor fewer. The process
	// therefore ends.
	rewriteSmall = 512 << 10
	rewriteFewer = 8
	rewriteRuns  = 128
	// rewriteJobBytes bounds the bytes that one job moves, together with content.MaxRewriteStripes.
	rewriteJobBytes = 64 << 20
	// rewriteJobs is the largest number of jobs in the whole cluster, waiting or leased.
	// rewritePoll is how often the leader checks for room for another. rewriteStripes is the number
	// of stripes per second given to jobs, however small. Each stripe takes records, a tombstone
	// for each of its chunks, and reads from several hosts.
	rewriteJobs    = 2
	rewritePoll    = time.Second
	rewriteStripes = 64
	// rewriteAgain is how long a pass rests after an error before it continues, or less if passes
	// are more frequent.
	rewriteAgain = time.Minute
)

// Rewriter is the leader's memory of the passes for sparse stripes. A new leader starts again.
type Rewriter struct {
	*lead.Term
	cfg    Config
	fleet  *fleet.Fleet
	leader Leader

	mu     sync.Mutex
	report *wire.Rewriting
	at     time.Time // when the pass began or, between two, ended
}

// now describes the progress; nil if no pass has begun yet.
func (r *Rewriter) now(at time.Time) *wire.Rewriting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() {
		return nil
	}
	out := proto.CloneOf(r.report)
	out.ElapsedMillis = uint64(at.Sub(r.at).Milliseconds())
	return out
}

func (r *Rewriter) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report, r.at = &wire.Rewriting{Looking: true, Rounds: r.report.GetRounds()}, now
}

// rest records that the pass is paused after an error.
func (r *Rewriter) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report != nil {
		r.report.Looking = false
	}
}

// resume records that it continues.
func (r *Rewriter) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Looking = true
}

// end returns the number of dead bytes in stripes in use.
func (r *Rewriter) end(now time.Time) (dead uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Looking, r.report.Rounds, r.at = false, r.report.Rounds+1, now
	return r.report.DeadBytes
}

// rewriteStripes searches all files, once per RewriteEvery, for sparse stripes
// and creates jobs that rewrite them, until ctx ends. It considers a stripe
// only if it is older than the previous pass. So it leaves alone data that is
// being written or is about to be overwritten.
func (rw *Rewriter) rewriteStripes(ctx context.Context) {
	if rw.cfg.RewriteLive < 0 {
		return
	}
	settled, err := rw.lastStripe()
	for rw.Pause(ctx, nil, rw.cfg.RewriteEvery) {
		next, failed := rw.lastStripe()
		if err == nil && failed == nil {
			err = rw.rewriteRound(ctx, settled)
		}
		if err != nil && ctx.Err() == nil {
			rw.Log.Warn("could not search for mostly dead stripes; trying again later", "err", err)
		}
		settled, err = next, failed
	}
}

func (rw *Rewriter) lastStripe() (id moraine.StripeID, err error) {
	err = rw.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		id, err = content.LastStripe(rw.Machine.View(r))
		return err
	})
	return id, err
}

// rewriteRound inspects all files once. After an error it continues with the file after the one
// that failed, so that passes reach the end of large namespaces.
func (rw *Rewriter) rewriteRound(ctx context.Context, settled moraine.StripeID) error {
	rw.begin(rw.Clock.Now())
	s := newSweep(rw, settled)
	for !s.ended {
		if err := rw.rewriteTurn(ctx, s); err != nil {
			rw.rest()
			rw.Log.Warn("could not search for mostly dead stripes; continuing later", "err", err)
			s.skip()
			if !rw.Pause(ctx, nil, min(rewriteAgain, rw.cfg.RewriteEvery)) {
				return ctx.Err()
			}
			rw.resume()
		}
		if !rw.Pause(ctx, nil, rewritePause) {
			return ctx.Err()
		}
	}
	rw.Metrics.StripesDeadBytes.Set(float64(rw.end(rw.Clock.Now())))
	return nil
}

// rewriteTurn inspects some more records and creates jobs for what they need. Tasks without a job
// are left to the next pass.
func (rw *Rewriter) rewriteTurn(ctx context.Context, s *sweep) error {
	if err := rw.Store.View(func(r kvtx.Reader, _ uint64) error { return s.look(r) }); err != nil {
		return err
	}
	tasks := s.tasks
	s.tasks = nil
	for _, task := range tasks {
		if err := rw.createRewrite(ctx, task); err != nil {
			return err
		}
	}
	return nil
}

// rewriteTask is one job to create.
type rewriteTask struct {
	inode moraine.InodeID // 0: the files that the task names
	task  *wire.RewriteTask
	bytes int64 // live bytes
}

// count adds a stripe of which all references were seen.
func (r *Rewriter) count(record *moraine.Stripe, named content.Named) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Stripes++
	r.report.NamedBytes += uint64(named.Bytes)
	r.report.DeadBytes += uint64(max(record.Length-named.Bytes, 0))
}

// leave records the number of stripes that were not judged.
func (r *Rewriter) leave(unjudged uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.SharedStripes = unjudged
}

// choose counts a job that was created.
func (r *Rewriter) choose(t rewriteTask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.ChosenStripes += uint64(len(t.task.Stripes))
	r.report.ChosenFiles += uint64(len(t.task.Files))
	r.report.ChosenBytes += uint64(t.bytes)
}

// createRewrite creates one job as soon as there are few others, nothing is being repaired and
// every host is up. It then rests for as long as the job's bytes and stripes take at the permitted
// rates.
func (rw *Rewriter) createRewrite(ctx context.Context, t rewriteTask) error {
	for {
		busy, err := rw.rewriteBusy()
		if err != nil {
			return err
		}
		if !busy {
			break
		}
		if !rw.Pause(ctx, nil, rewritePoll) {
			return ctx.Err()
		}
	}
	resp, err := rw.Command(ctx, &statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{
		{Kind: wire.JobKind_JOB_KIND_REWRITE, Inode: uint64(t.inode), Rewrite: t.task}}}}})
	if err != nil {
		return err
	}
	if len(resp.GetJobs().GetJobs()) == 0 {
		return nil // the file is gone
	}
	rw.choose(t)
	rw.Metrics.RewriteStripes.Add(float64(len(t.task.Stripes)))
	rw.Metrics.PackFiles.Add(float64(len(t.task.Files)))
	stripes := len(t.task.Stripes) + len(t.task.Files)
	seconds := max(float64(t.bytes)/float64(rw.cfg.RewriteBytesPerSecond), float64(stripes)/rewriteStripes)
	rw.Pause(ctx, nil, time.Duration(seconds*float64(time.Second)))
	return ctx.Err()
}

// rewriteBusy reports whether another job would be too many now. While a host is away, new stripes
// have fewer hosts to spread over, and the stripes to read may have nothing to spare.
func (rw *Rewriter) rewriteBusy() (busy bool, err error) {
	if !rw.fleet.Topology.Calm() {
		return true, nil
	}
	err = rw.Store.View(func(r kvtx.Reader, _ uint64) error {
		running, err := statefleet.RepairHopeful(rw.Machine.View(r))
		if busy = running > 0; busy || err != nil {
			return err
		}
		live, err := jobs.LiveJobs(rw.Machine.View(r), wire.JobKind_JOB_KIND_REWRITE, rewriteJobs)
		busy = len(live) >= rewriteJobs
		return err
	})
	return busy, err
}
