package metadata

import (
	"cmp"
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
	// those of a larger file are counted window by window.
	rewriteWindow = 1 << 13
	// rewriteShared bounds the stripes that several files name, or several windows, which
	// are kept until all files were seen; rewriteParts the files, or windows, of each.
	rewriteShared, rewriteParts = 1 << 14, 64
	// rewriteLeast is the least that must be dead in a stripe: less is not worth a commit.
	rewriteLeast = 64 << 10
	// rewriteSmall is up to where copies are small: they take twice the room of what is
	// coded, and a record each. What a file has of them is put together where that makes
	// rewriteFewer times fewer of them, by commits of rewriteRuns extents; how much fits
	// into a stripe the mover knows, and goes on where they become half as many times
	// fewer. So it comes to an end.
	rewriteSmall = 512 << 10
	rewriteFewer = 8
	rewriteRuns  = 128
	// rewriteJobBytes bounds what one job moves, together with state.MaxRewriteStripes.
	rewriteJobBytes = 64 << 20
	// rewriteJobs is how many jobs there are at most, of the whole cluster, waiting for a
	// mover or leased; rewritePoll how often the leader looks whether there may be another,
	// and rewriteStripes how many stripes a second they are given, however small: each takes
	// records, a tombstone for each of its chunks, and reads from several hosts.
	rewriteJobs    = 2
	rewritePoll    = time.Second
	rewriteStripes = 64
	// rewriteAgain is how long a look rests after an error before it goes on, or less where
	// looks are made more often.
	rewriteAgain = time.Minute
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

// rest notes that the look stands still, after an error.
func (r *rewriting) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report != nil {
		r.report.Looking = false
	}
}

// resume notes that it goes on.
func (r *rewriting) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Looking = true
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

// rewriteRound looks through all files once. After an error it goes on from where it was, so
// that looks come to the end of large namespaces, with the file after the one that it failed
// at.
func (l *leader) rewriteRound(ctx context.Context, settled moraine.StripeID) error {
	if l.speaks(ctx, state.LevelRewrite) != nil {
		return nil // not before the upgrade is finished
	}
	l.rewriting.begin(l.deps.Clock.Now())
	s := &sweep{l: l, settled: settled, named: make(map[moraine.StripeID]state.Named), shared: make(map[moraine.StripeID][]found)}
	for !s.ended {
		if err := l.rewriteTurn(ctx, s); err != nil {
			l.rewriting.rest()
			l.deps.Log.Warn("stripes that are mostly dead could not be looked for; going on in a while", "err", err)
			s.skip()
			if !l.pause(ctx, nil, min(rewriteAgain, l.cfg.RewriteEvery)) {
				return ctx.Err()
			}
			l.rewriting.resume()
		}
		if !l.pause(ctx, nil, rewritePause) {
			return ctx.Err()
		}
	}
	l.deps.Metrics.StripesDeadBytes.Set(float64(l.rewriting.end(l.deps.Clock.Now())))
	return nil
}

// rewriteTurn looks at some more records, and makes jobs of what they name. Tasks that could
// not be made jobs of are left to the next look.
func (l *leader) rewriteTurn(ctx context.Context, s *sweep) error {
	if err := l.store.View(func(r state.Reader, _ uint64) error { return s.look(r) }); err != nil {
		return err
	}
	tasks := s.tasks
	s.tasks = nil
	for _, task := range tasks {
		if err := l.createRewrite(ctx, task); err != nil {
			return err
		}
	}
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
	// shared is what each of several files names of a stripe, and sharedIDs the stripes that
	// have yet to be judged; together are those of them that were chosen.
	shared    map[moraine.StripeID][]found
	sharedIDs []moraine.StripeID
	together  []found
	untold    uint64
	tasks     []rewriteTask
	ended     bool
}

// found is what a file names of a stripe.
type found struct {
	file  moraine.InodeID
	id    moraine.StripeID
	named state.Named
}

// skip leaves the file under way: what was counted of it is half. What another file names of
// the same stripes is then not all, so that those are left.
func (s *sweep) skip() {
	clear(s.named)
	s.tasks = nil
	if s.from = 0; len(s.files) > 0 {
		s.files = s.files[1:]
	}
}

// look looks at some more records.
func (s *sweep) look(r state.Reader) error {
	m := s.l.machine
	for left := rewriteLooks; left > 0; {
		if len(s.files) == 0 {
			if s.last {
				return s.judgeShared(r)
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

// judge chooses those of the stripes that a file names which are to be rewritten. What other
// files name too is judged when all were seen.
func (s *sweep) judge(r state.Reader, file moraine.InodeID) error {
	var chosen, small []found
	for id, named := range s.named {
		record, err := s.l.machine.StripeByID(r, id)
		if err != nil {
			return err
		}
		if record == nil {
			continue
		}
		if record.RefCount != named.Tables {
			s.share(record, found{file: file, id: id, named: named})
			continue
		}
		if ok, err := s.choose(r, record, named); err != nil {
			return err
		} else if ok {
			chosen = append(chosen, found{file: file, id: id, named: named})
		} else if record.Scheme.IsCopies() && record.Length <= rewriteSmall && settled(record, s.settled) {
			small = append(small, found{file: file, id: id, named: named})
		}
	}
	s.order(chosen, 0)
	return s.pack(r, small)
}

// pack has small stripes of a file put together, where that makes them few.
func (s *sweep) pack(r state.Reader, small []found) error {
	if len(small) < rewriteFewer {
		return nil
	}
	whole := small[:0]
	for _, f := range small {
		queued, err := s.l.machine.Queued(r, f.id)
		if err != nil {
			return err
		}
		if !queued {
			whole = append(whole, f)
		}
	}
	slices.SortFunc(whole, inOrder)
	for len(whole) > 0 {
		n := min(len(whole), state.MaxRewriteStripes)
		extents := 0
		for _, f := range whole[:n] {
			extents += f.named.Extents
		}
		if (1+extents/rewriteRuns)*rewriteFewer <= n {
			s.order(whole[:n], rewriteFewer/2)
		}
		whole = whole[n:]
	}
	return nil
}

// inOrder sorts by files, and within each in the order of the file.
func inOrder(a, b found) int {
	return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.named.From, b.named.From), cmp.Compare(a.id, b.id))
}

// share keeps what a file, or a part of one, names of a stripe that has other references.
func (s *sweep) share(record *moraine.Stripe, f found) {
	parts, known := s.shared[record.ID]
	if !known && len(s.shared) == rewriteShared || record.RefCount > rewriteParts || len(parts) == rewriteParts {
		s.untold++
		return
	}
	if !known {
		s.sharedIDs = append(s.sharedIDs, record.ID)
	}
	s.shared[record.ID] = append(parts, f)
}

// judgeShared goes on to judge, once all files were seen, the stripes that several name: by
// all of them together, and if one is to be rewritten then in each.
func (s *sweep) judgeShared(r state.Reader) error {
	for left := rewriteLooks; left > 0 && len(s.sharedIDs) > 0; left-- {
		id := s.sharedIDs[0]
		s.sharedIDs = s.sharedIDs[1:]
		record, err := s.l.machine.StripeByID(r, id)
		if err != nil {
			return err
		}
		if record == nil {
			continue
		}
		var all state.Named
		for _, f := range s.shared[id] {
			all.Bytes, all.Tables = all.Bytes+f.named.Bytes, all.Tables+f.named.Tables
		}
		if record.RefCount != all.Tables {
			s.untold++
			continue
		}
		if ok, err := s.choose(r, record, all); err != nil {
			return err
		} else if ok {
			s.together = append(s.together, s.shared[id]...)
		}
	}
	if len(s.sharedIDs) > 0 {
		return nil
	}
	s.order(s.together, 0)
	s.l.rewriting.leave(s.untold)
	s.ended = true
	return nil
}

// choose reports whether a stripe of which all that is named was seen is to be rewritten.
func (s *sweep) choose(r state.Reader, record *moraine.Stripe, named state.Named) (bool, error) {
	s.l.rewriting.count(record, named)
	if !settled(record, s.settled) || !mostlyDead(record, named, s.l.cfg.RewriteLive) {
		return false, nil
	}
	// What waits for repair may be lost for all that is known: that goes first.
	queued, err := s.l.machine.Queued(r, record.ID)
	return !queued, err
}

// order makes tasks of what was chosen, file by file and each in the order of the file, so
// that what comes to lie in one stripe is near each other. fewer is that of the tasks.
func (s *sweep) order(chosen []found, fewer uint32) {
	slices.SortFunc(chosen, inOrder)
	for len(chosen) > 0 {
		t := rewriteTask{inode: chosen[0].file, task: &wire.RewriteTask{Offset: uint64(chosen[0].named.From), Fewer: fewer}}
		for len(chosen) > 0 && chosen[0].file == t.inode && len(t.task.Stripes) < state.MaxRewriteStripes &&
			(t.bytes == 0 || t.bytes+chosen[0].named.Bytes <= rewriteJobBytes) {
			c := chosen[0]
			t.task.Stripes, t.bytes = append(t.task.Stripes, uint64(c.id)), t.bytes+c.named.Bytes
			t.task.End = max(t.task.End, uint64(c.named.To))
			chosen = chosen[1:]
		}
		s.tasks = append(s.tasks, t)
	}
}

// count adds a stripe of which all that names it was seen.
func (r *rewriting) count(record *moraine.Stripe, named state.Named) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Stripes++
	r.report.NamedBytes += uint64(named.Bytes)
	r.report.DeadBytes += uint64(max(record.Length-named.Bytes, 0))
}

// leave notes how many stripes were not judged.
func (r *rewriting) leave(untold uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.SharedStripes = untold
}

// mostlyDead reports whether a stripe is worth to be rewritten: at most so many hundredths
// of it are named.
func mostlyDead(s *moraine.Stripe, named state.Named, live int) bool {
	return s.Length-named.Bytes >= rewriteLeast && named.Bytes*100 <= s.Length*int64(live)
}

// settled reports whether a stripe is as old as was given, and on its devices. The level of
// what is in memory alone is being settled: that is left alone.
func settled(s *moraine.Stripe, last moraine.StripeID) bool {
	return s.ID <= last && !slices.ContainsFunc(s.Chunks, func(c moraine.ChunkState) bool { return c.Level != moraine.NVMe })
}

// createRewrite makes one job as soon as there are few others, nothing is being repaired and
// every host is there, and then rests for as long as its bytes and its stripes take at the
// rates that are allowed.
func (l *leader) createRewrite(ctx context.Context, t rewriteTask) error {
	for {
		busy, err := l.rewriteBusy()
		if err != nil {
			return err
		}
		if !busy {
			break
		}
		if !l.pause(ctx, nil, rewritePoll) {
			return ctx.Err()
		}
	}
	resp, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{
		{Kind: wire.JobKind_JOB_KIND_REWRITE, Inode: uint64(t.inode), Rewrite: t.task}}}}})
	if err != nil {
		return err
	}
	if len(resp.GetJobs().GetJobs()) == 0 {
		return nil // the file is gone
	}
	l.rewriting.mu.Lock()
	l.rewriting.report.ChosenStripes += uint64(len(t.task.Stripes))
	l.rewriting.report.ChosenBytes += uint64(t.bytes)
	l.rewriting.mu.Unlock()
	l.deps.Metrics.RewriteStripes.Add(float64(len(t.task.Stripes)))
	seconds := max(float64(t.bytes)/float64(l.cfg.RewriteBytesPerSecond), float64(len(t.task.Stripes))/rewriteStripes)
	l.pause(ctx, nil, time.Duration(seconds*float64(time.Second)))
	return ctx.Err()
}

// rewriteBusy reports whether another job would be too many now. While a host is away what
// is put has less room to be spread, and what is read may have nothing to spare.
func (l *leader) rewriteBusy() (busy bool, err error) {
	if !l.topology.calm() {
		return true, nil
	}
	err = l.store.View(func(r state.Reader, _ uint64) error {
		running, err := l.machine.RepairRunning(r)
		if busy = running > 0; busy || err != nil {
			return err
		}
		n, err := l.machine.LiveJobs(r, wire.JobKind_JOB_KIND_REWRITE, rewriteJobs)
		busy = n >= rewriteJobs
		return err
	})
	return busy, err
}

// commitRewrite has what was rewritten kept for longer than what somebody removed.
func (l *leader) commitRewrite(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	req := proto.CloneOf(c.req)
	req.GetCommitRewrite().KeepMillis = uint64(max(l.cfg.RewriteGrace-l.cfg.Grace, 0).Milliseconds())
	return l.propose(ctx, c.caller, req)
}
