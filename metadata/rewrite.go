package metadata

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// The leader looks at rewriteLooks records of the state at once, rewritePause apart, so
	// that a look through a large namespace is never one long read, and leaves the
	// processor to others most of the time.
	rewriteLooks = 2048
	rewritePause = 100 * time.Millisecond
	// rewriteInodes is how many inodes are looked at for files in a turn.
	rewriteInodes = 512
	// rewriteWindow bounds the stripes of one file whose references are counted together:
	// those of a larger file are counted window by window, and what two windows name is
	// not judged.
	rewriteWindow = 1 << 13
	// rewriteLeast is the least that must be dead in a stripe: less is not worth a commit.
	rewriteLeast = 64 << 10
	// rewriteJobBytes bounds what one job moves, together with state.MaxRewriteStripes.
	rewriteJobBytes = 64 << 20
	// rewritePending is how many jobs wait for a mover at most.
	rewritePending = 2
)

// rewriting is the leader's memory of the looks for stripes that are mostly dead. A new
// leader begins anew.
type rewriting struct {
	mu     sync.Mutex
	report *wire.Rewriting
	at     time.Time // when the look began or, between two, ended
}

// now says how it goes; nil where no look has begun yet.
func (r *rewriting) now(at time.Time) *wire.Rewriting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() {
		return nil
	}
	out := proto.CloneOf(r.report)
	out.ElapsedMillis = uint64(at.Sub(r.at).Milliseconds())
	return out
}

func (r *rewriting) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report, r.at = &wire.Rewriting{Looking: true, Rounds: r.report.GetRounds()}, now
}

// end returns how much is dead in stripes that are in use.
func (r *rewriting) end(now time.Time) (dead uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Looking, r.report.Rounds, r.at = false, r.report.Rounds+1, now
	return r.report.DeadBytes
}

// rewriteStripes looks through the files, once in RewriteEvery, for stripes of which they
// name little, and has movers rewrite them, until ctx ends. A stripe is looked at when it
// is older than the look before, so that what is being written, or about to be written
// over, is left alone.
func (l *leader) rewriteStripes(ctx context.Context) {
	if l.cfg.RewriteLive < 0 {
		return
	}
	settled, err := l.lastStripe()
	for l.pause(ctx, nil, l.cfg.RewriteEvery) {
		next, failed := l.lastStripe()
		if err == nil && failed == nil {
			err = l.rewriteRound(ctx, settled)
		}
		if err != nil && ctx.Err() == nil {
			l.deps.Log.Warn("stripes that are mostly dead could not be looked for; trying again later", "err", err)
		}
		settled, err = next, failed
	}
}

func (l *leader) lastStripe() (id moraine.StripeID, err error) {
	err = l.store.View(func(r state.Reader, _ uint64) (err error) {
		id, err = l.machine.LastStripe(r)
		return err
	})
	return id, err
}

// rewriteRound looks through all files once.
func (l *leader) rewriteRound(ctx context.Context, settled moraine.StripeID) error {
	if l.speaks(ctx, state.LevelRewrite) != nil {
		return nil // not before the upgrade is finished
	}
	l.rewriting.begin(l.deps.Clock.Now())
	s := &sweep{l: l, settled: settled, named: make(map[moraine.StripeID]state.Named)}
	for !s.ended {
		if err := l.store.View(func(r state.Reader, _ uint64) error { return s.look(r) }); err != nil {
			return err
		}
		for _, task := range s.tasks {
			if err := l.createRewrite(ctx, task); err != nil {
				return err
			}
		}
		s.tasks = nil
		if !l.pause(ctx, nil, rewritePause) {
			return ctx.Err()
		}
	}
	l.deps.Metrics.StripesDeadBytes.Set(float64(l.rewriting.end(l.deps.Clock.Now())))
	return nil
}

// rewriteTask is one job to be made.
type rewriteTask struct {
	inode moraine.InodeID
	task  *wire.RewriteTask
	bytes int64 // named
}

// sweep is a look through all files, under way. It goes on from where it was: what changes
// meanwhile is seen, or will be the next time.
type sweep struct {
	l       *leader
	settled moraine.StripeID
	after   moraine.InodeID   // inodes up to it are in files, or done
	files   []moraine.InodeID // the first one is under way
	last    bool              // there are no files but these
	from    int64             // offset in the file under way
	named   map[moraine.StripeID]state.Named
	tasks   []rewriteTask
	ended   bool
}

// look looks at some more records.
func (s *sweep) look(r state.Reader) error {
	m := s.l.machine
	for left := rewriteLooks; left > 0; {
		if len(s.files) == 0 {
			if s.last {
				s.ended = true
				return nil
			}
			files, last, err := m.Rewritables(r, s.after, rewriteInodes)
			if err != nil {
				return err
			}
			s.files, s.after, s.last = files, last, last == 0
			left -= rewriteInodes
			continue
		}
		n, next, err := m.NameStripes(r, s.files[0], s.from, left, s.named)
		if err != nil {
			return err
		}
		left -= n + 1
		if s.from = next; next >= 0 && len(s.named) < rewriteWindow {
			continue
		}
		left -= len(s.named)
		if err := s.judge(r, s.files[0]); err != nil {
			return err
		}
		if clear(s.named); next < 0 {
			s.files, s.from = s.files[1:], 0
		}
	}
	return nil
}

// judge chooses those of the stripes that a file names which are to be rewritten.
func (s *sweep) judge(r state.Reader, file moraine.InodeID) error {
	var chosen []moraine.StripeID
	for id, named := range s.named {
		record, err := s.l.machine.StripeByID(r, id)
		if err != nil {
			return err
		}
		if record == nil || !s.l.rewriting.count(record, named) || id > s.settled || !mostlyDead(record, named, s.l.cfg.RewriteLive) {
			continue
		}
		// What waits for repair may be lost for all that is known: that goes first.
		queued, err := s.l.machine.Queued(r, id)
		if err != nil {
			return err
		}
		if !queued {
			chosen = append(chosen, id)
		}
	}
	// In the order of the file, so that what comes to lie in one stripe is near each other.
	slices.SortFunc(chosen, func(a, b moraine.StripeID) int {
		if d := s.named[a].From - s.named[b].From; d != 0 {
			return int(min(max(d, -1), 1))
		}
		return int(int64(a) - int64(b))
	})
	for len(chosen) > 0 {
		t := rewriteTask{inode: file, task: &wire.RewriteTask{Offset: uint64(s.named[chosen[0]].From)}}
		for len(chosen) > 0 && len(t.task.Stripes) < state.MaxRewriteStripes && (t.bytes == 0 || t.bytes+s.named[chosen[0]].Bytes <= rewriteJobBytes) {
			n := s.named[chosen[0]]
			t.task.Stripes, t.bytes = append(t.task.Stripes, uint64(chosen[0])), t.bytes+n.Bytes
			t.task.End = max(t.task.End, uint64(n.To))
			chosen = chosen[1:]
		}
		s.tasks = append(s.tasks, t)
	}
	return nil
}

// count adds a stripe to what was looked at, and reports whether all that names it was.
func (r *rewriting) count(record *moraine.Stripe, named state.Named) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if record.RefCount != named.Tables {
		r.report.SharedStripes++
		return false
	}
	r.report.Stripes++
	r.report.NamedBytes += uint64(named.Bytes)
	r.report.DeadBytes += uint64(max(record.Length-named.Bytes, 0))
	return true
}

// mostlyDead reports whether a stripe is worth to be rewritten: at most so many hundredths
// of it are named. What is in memory alone is not: its level is being settled.
func mostlyDead(s *moraine.Stripe, named state.Named, live int) bool {
	if s.Length-named.Bytes < rewriteLeast || named.Bytes*100 > s.Length*int64(live) {
		return false
	}
	return !slices.ContainsFunc(s.Chunks, func(c moraine.ChunkState) bool { return c.Level != moraine.NVMe })
}

// createRewrite makes one job as soon as few others wait for a mover and nothing is being
// repaired, and then rests for as long as its bytes take at the rate that is allowed.
func (l *leader) createRewrite(ctx context.Context, t rewriteTask) error {
	for {
		var busy bool
		err := l.store.View(func(r state.Reader, _ uint64) error {
			running, err := l.machine.RepairRunning(r)
			if busy = running > 0; busy || err != nil {
				return err
			}
			jobs, err := l.machine.PendingJobs(r, []wire.JobKind{wire.JobKind_JOB_KIND_REWRITE}, rewritePending)
			busy = len(jobs) == rewritePending
			return err
		})
		if err != nil {
			return err
		}
		if !busy {
			break
		}
		if !l.pause(ctx, nil, time.Second) {
			return ctx.Err()
		}
	}
	_, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{
		{Kind: wire.JobKind_JOB_KIND_REWRITE, Inode: uint64(t.inode), Rewrite: t.task}}}}})
	if err != nil {
		return err
	}
	l.rewriting.mu.Lock()
	l.rewriting.report.ChosenStripes += uint64(len(t.task.Stripes))
	l.rewriting.report.ChosenBytes += uint64(t.bytes)
	l.rewriting.mu.Unlock()
	l.deps.Metrics.RewriteStripes.Add(float64(len(t.task.Stripes)))
	l.pause(ctx, nil, time.Duration(float64(t.bytes)/float64(l.cfg.RewriteBytesPerSecond)*float64(time.Second)))
	return ctx.Err()
}
