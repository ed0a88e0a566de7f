// Package schedules_test runs fault schedules on a cluster of real processes, each
// on a host of its own. Processes are killed and stopped, hosts disconnected, disks
// slow and full, bits flip and replies get lost, several at a time. Meanwhile
// writers, readers and a checkpoint loop run, and a model knows every acknowledged
// byte.
//
// One path through it: plan (schedule_test.go) draws a schedule from a seed, and
// makeWorld makes a world (world_test.go). The injector runs the plan
// (faults_test.go), while the crew works (work_test.go) and the model checks every
// read (model_test.go). Then all faults end, and everything acknowledged is read.
// The ledger records the schedule (ledger_test.go).
package schedules_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/netns"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// TestMain runs the tests or, in a worker process, the worker.
func TestMain(m *testing.M) {
	if spec := os.Getenv(workerVariable); spec != "" {
		if err := runWorker(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// settled is how long everything may take to be readable after the last fault.
const settled = 2 * time.Minute

// mostOfASchedule limits the total time of one, with all its waits.
const mostOfASchedule = 10 * time.Minute

// game is one running schedule.
type game struct {
	rewritten chosen // stripes that passes chose to rewrite
	packed    chosen // and files to pack
	seed      uint64
	shape     shape
	m         *model
	in        *injector
	w         *work
	began     time.Time
	failure   error
}

// play runs a schedule on a world.
func play(ctx context.Context, w *world, seed uint64, s shape) (*game, error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	g := &game{seed: seed, shape: s, m: &model{seed: seed}, began: time.Now()}
	g.w = &work{m: g.m, crew: w.crew, stop: stop, last: map[string]string{}, lost: func() (map[string]bool, error) { return lostFiles(ctx, w.admin) }}
	g.in = &injector{net: w.net, cluster: w.cluster, crew: w.crew, proxies: w.proxies, slow: w.slow, admin: w.admin, seed: seed, busy: map[string]bool{}}
	var crew sync.WaitGroup
	crew.Go(func() { g.w.run(working, seed) })
	crew.Go(func() { g.watchLooks(working) })
	err := g.faults(working)
	stop()
	crew.Wait()
	if err == nil && len(g.w.wrong) == 0 {
		err = w.mend(ctx)
	}
	if err == nil && len(g.w.wrong) == 0 {
		g.w.checkAll(reader, settled)
		err = g.nothingLost(ctx)
	}
	for _, name := range clients {
		if log, _ := os.ReadFile(w.crew[name].log); bytes.Contains(log, []byte("DATA RACE")) {
			err = errors.Join(err, fmt.Errorf("a data race in %s", name))
		}
	}
	g.failure = err
	return g, errors.Join(append(g.w.wrong, err)...)
}

// faults runs the plan, and continues with others until the schedule has everything
// required: faults without an effect do not count.
func (g *game) faults(ctx context.Context) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	one := func(f fault) {
		if err := g.in.play(ctx, f); err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
	}
	for _, f := range plan(g.seed, g.shape) {
		all.Go(func() {
			select {
			case <-time.After(time.Until(g.began.Add(f.At))):
				one(f)
			case <-ctx.Done():
			}
		})
	}
	all.Wait()
	rng := rand.New(rand.NewPCG(g.seed, 2))
	for ctx.Err() == nil && !g.enough() && time.Since(g.began) < 5*g.shape.lasts {
		if kinds, n, _ := g.in.counts(); n < g.shape.faults || len(kinds) < g.shape.kinds {
			one(draw(rng, allKinds[rng.IntN(len(allKinds))]))
		}
		time.Sleep(200 * time.Millisecond)
	}
	return errors.Join(errs...)
}

// enough reports whether the schedule has lasted long enough, and has everything
// required.
func (g *game) enough() bool {
	kinds, n, _ := g.in.counts()
	g.m.mu.Lock()
	reads := g.m.reads
	g.m.mu.Unlock()
	return time.Since(g.began) >= g.shape.lasts && n >= g.shape.faults && len(kinds) >= g.shape.kinds && reads >= int64(g.shape.reads)
}

// nothingLost checks whether the service has a lost stripe.
func (g *game) nothingLost(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	resp, err := rawclient.Of(g.in.admin).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return err
	}
	if n := resp.GetCluster().GetLostStripes(); n > 0 && g.m.lost == 0 {
		return fmt.Errorf("%d stripes are lost, as the service says", n)
	}
	return nil
}

// lostFiles returns the files that have lost bytes which were only in memory.
func lostFiles(ctx context.Context, admin *client.Client) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	names := map[string]bool{}
	for after := uint64(0); ; {
		resp, err := rawclient.Of(admin).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{After: after}}})
		if err != nil {
			return nil, err
		}
		files := resp.GetLost().GetFiles()
		for _, f := range files {
			names["/"+f.Path], after = true, f.Inode
		}
		if !resp.GetLost().GetMore() || len(files) == 0 {
			return names, nil
		}
	}
}

// chosen adds up the choices of passes, each of which begins at 0.
type chosen struct{ before, now int }

func (c *chosen) note(n uint64) {
	if int(n) < c.now {
		c.before += c.now
	}
	c.now = int(n)
}

func (c *chosen) sum() int { return c.before + c.now }

// watchLooks adds up what the leaders' passes choose, until ctx ends.
func (g *game) watchLooks(ctx context.Context) {
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		resp, err := rawclient.Of(g.in.admin).Meta(asking, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		cancel()
		if r := resp.GetCluster().GetRewriting(); err == nil && r != nil {
			g.rewritten.note(r.GetChosenStripes())
			g.packed.note(r.GetChosenFiles())
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (g *game) entry() entry {
	kinds, _, overlapping := g.in.counts()
	e := entry{Seed: g.seed, Seconds: time.Since(g.began).Seconds(), Fired: kinds, Overlaps: overlapping,
		Reads: g.m.reads, ReadBytes: g.m.readBytes, Acked: g.m.acked, Steps: len(g.m.steps), Evicted: g.m.evicted, Failed: g.m.failed, Rewritten: g.rewritten.sum(), Packed: g.packed.sum(),
		InMemory: g.m.inMemory, LostNamed: g.m.lost}
	for _, err := range g.w.wrong {
		e.Wrong = append(e.Wrong, err.Error())
	}
	if g.failure != nil {
		e.Error = g.failure.Error()
	}
	return e
}

func (e entry) String() string {
	n := 0
	for _, k := range e.Fired {
		n += k
	}
	return fmt.Sprintf("seed %d: %.0f s, %d faults fired %v, %d pairs of them at once; %d reads of %d MiB checked, %d MiB acknowledged, %d checkpoints, %d evictions, %d stripes rewritten, %d files packed, %d files acknowledged out of memory, of which %d are lost by name; %d operations failed",
		e.Seed, e.Seconds, n, e.Fired, e.Overlaps, e.Reads, e.ReadBytes>>20, e.Acked>>20, e.Steps, e.Evicted, e.Rewritten, e.Packed, e.InMemory, e.LostNamed, e.Failed)
}

// runSchedule makes a world, runs one schedule on it, and removes it. The disks of
// a failed one are kept.
func runSchedule(t *testing.T, binary string, seed uint64, s shape) entry {
	t.Helper()
	dir, err := os.MkdirTemp("", "schedule-")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	w, err := makeWorld(ctx, binary, dir, seed)
	if err != nil {
		os.RemoveAll(dir) //nolint:errcheck // it is in the directory for temporary files
		if errors.Is(err, netns.ErrCannot) || errors.Is(err, errMount) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	g, err := play(ctx, w, seed, s)
	if err == nil && !g.enough() {
		err = errors.New("the schedule did not come to what it must hold")
		g.failure = err
	}
	e := g.entry()
	if err != nil {
		t.Errorf("seed %d: %v\n%v\nfired: %v\ncame to nothing: %v\nthe last errors: %s\n%s\nsee %s", seed, err, e, g.in.fired, g.in.notes, g.w.errors(), w.logs(), dir)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if !t.Failed() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	t.Log(e)
	t.Log("the last errors: ", g.w.errors())
	if len(g.in.notes) > 0 {
		t.Log("came to nothing: ", g.in.notes)
	}
	return e
}

// buildBinary builds the server, as shipped.
func buildBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "moraine")
	if err := devcluster.Build(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSchedules runs fault schedules: a short one or, in the long form, as many as
// requested, several at a time, from the first seed that the ledger does not have.
// It fails if one acknowledged byte is lost, or a wrong one was served.
func TestSchedules(t *testing.T) {
	if !testseed.Long() {
		seed := testseed.First(t)
		runSchedule(t, buildBinary(t), seed, shortShape)
		return
	}
	book, err := openLedger("../..")
	if err != nil {
		t.Fatal(err)
	}
	first := testseed.From(t, 0)
	_, named := os.LookupEnv("MORAINE_TEST_SEED") // then that one, played or not
	binary := buildBinary(t)
	places := make(chan struct{}, max(2, runtime.NumCPU()/4))
	var mu sync.Mutex
	t.Run("seeds", func(t *testing.T) {
		seed := first
		for range testseed.Runs(t, 1, 20) {
			for ; !named && book.done[seed].Seconds > 0; seed++ {
			}
			mine := seed
			seed++
			t.Run(fmt.Sprint(mine), func(t *testing.T) {
				t.Parallel()
				places <- struct{}{}
				defer func() { <-places }()
				if end, ok := t.Deadline(); ok && time.Until(end) < mostOfASchedule {
					t.Skip("no time left for it")
				}
				e := runSchedule(t, binary, mine, longShape)
				if t.Skipped() {
					return
				}
				if t.Failed() && len(e.Wrong) == 0 && e.Error == "" {
					e.Error = "it was not taken away as a whole"
				}
				mu.Lock()
				defer mu.Unlock()
				book.done[mine] = e
				if err := book.add(e); err != nil {
					t.Error(err)
				}
			})
		}
	})
	t.Log(total(book))
	if n := len(book.done); n >= 30 && 3*book.overlapping() < n {
		t.Errorf("faults overlapped in %d schedules of %d", book.overlapping(), n)
	}
}

// total is the summary of all schedules of these sources.
func total(book *ledger) string {
	var sum entry
	sum.Fired = map[kind]int{}
	wrong, failed := 0, 0
	for _, e := range book.done {
		switch {
		case len(e.Wrong) > 0:
			wrong++
		case e.Error != "":
			failed++
		}
		for k, n := range e.Fired {
			sum.Fired[k] += n
		}
		sum.Reads, sum.ReadBytes, sum.Acked, sum.Steps, sum.Evicted = sum.Reads+e.Reads, sum.ReadBytes+e.ReadBytes, sum.Acked+e.Acked, sum.Steps+e.Steps, sum.Evicted+e.Evicted
		sum.Rewritten, sum.Packed = sum.Rewritten+e.Rewritten, sum.Packed+e.Packed
		sum.InMemory, sum.LostNamed = sum.InMemory+e.InMemory, sum.LostNamed+e.LostNamed
	}
	return fmt.Sprintf("%d schedules of these sources, over all runs (%s): %v; %d with faults at once; %d reads of %d MiB checked; %d MiB acknowledged; %d schedules lost or served wrong bytes, %d failed otherwise; %d files acknowledged out of memory, of which %d are lost by name; %d checkpoints; %d evictions; %d stripes rewritten; %d small files packed",
		len(book.done), book.path, sum.Fired, book.overlapping(), sum.Reads, sum.ReadBytes>>20, sum.Acked>>20, wrong, failed, sum.InMemory, sum.LostNamed, sum.Steps, sum.Evicted, sum.Rewritten, sum.Packed)
}
