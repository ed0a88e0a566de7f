package ckptfaults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/clock/clocktest"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
)

const runPath = "/runs/a"

// victims are the chunkservers that lose memory, or whose disks rot: as many as the default scheme
// has parity chunks.
var victims = []string{"n1", "n2"}

// mutant is a part of a schedule that is wrong on purpose.
type mutant struct {
	unverified bool // restores read the slots of the agents and compare no sums
	early      bool // ResolveStep names the newest step, committed or not
	lies       bool // Wait succeeds though the step was aborted
	greedy     bool // the answer to a claim says that the part that claims stores the slices
}

// world is the cluster, the training nodes, and the trainers of one schedule.
type world struct {
	dir     string
	rng     *rand.Rand
	c       *incluster.Cluster
	hold    incluster.Hold
	rot     rot
	trap    trap
	hands   clocktest.Hands
	bucket  *localbucket.Bucket
	nodes   []*node
	m       *model
	mutant  mutant
	clients atomic.Int64
	admin   *incluster.Client
	reader  *ckpt.Run
	team    *team
	// restart is that of the newest launch of the job.
	restart uint64
	teams   []*team
	// every is the interval of the run's policy: other steps stay in memory. 0: there is no policy.
	every uint64
	// replica has the number of the tensor that all ranks of a step have whole; nil: they have none.
	replica func(stepKey) uint64

	began time.Time

	mu     sync.Mutex
	events []string

	// ended are the clients whose process has ended, and which still try to close their sessions.
	ended sync.WaitGroup
}

func newWorld(t *testing.T, seed uint64, m mutant) (w *world, err error) {
	w = &world{began: time.Now(), rng: rand.New(rand.NewPCG(seed, 1)), m: newModel(), mutant: m}
	w.trap.greedy = m.greedy
	w.rot.w = w
	if w.bucket, err = localbucket.New(seed, nil); err != nil {
		return nil, err
	}
	if w.dir, err = os.MkdirTemp("/dev/shm", "moraine-ckptfaults-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	w.c, err = incluster.Start(context.Background(), incluster.Options{Seed: seed, Rule: w.hold.Rule,
		SettleTime: time.Second, BackupHorizon: -time.Second,
		Chunks: w.rot.over,
		Meta:   w.trap.chunkserver,
		Bucket: func(string) (object.Store, error) { return w.bucket, nil },
		Clock:  func(string) clock.Clock { return &w.hands }})
	if err != nil {
		return w, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), roundTime)
	defer cancel()
	if err := w.c.WaitReady(ctx); err != nil {
		return w, err
	}
	for i := range 2 {
		w.nodes = append(w.nodes, &node{w: w, name: fmt.Sprintf("agent%d", i+1), metrics: agent.NewMetrics(nil)})
		if err := w.nodes[i].start(); err != nil {
			return w, err
		}
	}
	if w.admin, err = w.c.Admin(ctx, "admin"); err != nil {
		return w, err
	}
	w.team, err = w.launch(ctx, launch{world: 2 + w.rng.Uint32N(2)})
	if err != nil {
		return w, err
	}
	w.reader, err = ckpt.OpenRun(ctx, w.admin.Client, runPath, ckpt.RunOptions{ReadOnly: true})
	return w, err
}

// client opens a client of the cluster, over wrap of the network.
func (w *world) client(ctx context.Context, wrap func(transport.Dialer) transport.Dialer) (*incluster.Client, error) {
	return w.c.ClientOver(ctx, fmt.Sprintf("c%d", w.clients.Add(1)), client.Config{CacheEntries: -1}, wrap)
}

// end cuts a client off, as the end of its process does. The client finds out by itself that nobody
// answers, while the schedule goes on.
func (w *world) end(c *incluster.Client) {
	c.Cut()
	w.ended.Go(c.Kill)
}

// stop ends everything.
func (w *world) stop() error {
	w.hold.End()
	w.trap.end()
	for _, t := range w.teams {
		t.die()
	}
	var errs []error
	for _, n := range w.nodes {
		n.kill()
	}
	if w.reader != nil {
		errs = append(errs, w.reader.Close(context.Background()))
	}
	if w.admin != nil {
		w.end(w.admin)
	}
	w.ended.Wait()
	if w.c != nil {
		errs = append(errs, w.c.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

func (w *world) log(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%.1f s: ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.events, ", ")
}

// read is how restores read.
func (w *world) read(ctx context.Context, k *ckpt.Checkpoint) ([]byte, error) {
	if w.mutant.unverified {
		return w.readUnverified(ctx, k)
	}
	return readTensor(ctx, k)
}

// atTheEnd checks that every step that was reported at level nvme is there with its bytes, and that a
// new launch continues.
func (w *world) atTheEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	if err := w.relaunch(ctx, launch{}); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if err := w.team.commit(ctx, moments{}); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	steps, err := ckpt.ListSteps(ctx, w.admin.Client, w.reader.ID(), false)
	if err != nil {
		return err
	}
	listed := map[stepKey]ckpt.StepInfo{}
	for _, s := range steps {
		listed[keyOf(s)] = s
	}
	for _, k := range w.m.mustBeThere() {
		s, ok := listed[k]
		if !ok || s.State != ckpt.StepCommitted {
			return wrongf("attempt %d step %d is missing: its state is %q", k.attempt, k.step, s.State)
		}
		if err := w.checkFiles(ctx, k, s); err != nil {
			return err
		}
	}
	w.log("%d steps at the end", len(listed))
	return w.c.Check()
}

// checkFiles compares the files of a step with what its ranks saved. So it reads steps of branches that
// no reader resolves any more.
func (w *world) checkFiles(ctx context.Context, k stepKey, s ckpt.StepInfo) error {
	want, copies := w.m.saved(k).replicaBytes(), 0
	for rank := range s.World {
		p, err := w.readPart(ctx, s, rank)
		if err != nil {
			return err
		}
		if !bytes.Contains(p, k.slice(rank)) {
			return wrongf("other bytes in the part of rank %d of attempt %d step %d", rank, k.attempt, k.step)
		}
		if want != nil && bytes.Contains(p, want) {
			copies++
		}
	}
	if want != nil && copies == 0 {
		return wrongf("no rank of attempt %d step %d has the tensor that all have saved", k.attempt, k.step)
	}
	return nil
}

// readPart reads the file of a rank's part.
func (w *world) readPart(ctx context.Context, s ckpt.StepInfo, rank uint32) ([]byte, error) {
	path := fmt.Sprintf("%s/%s/rank-%05d-of-%05d.safetensors", runPath, s.Path, rank, s.World)
	r, err := w.admin.OpenFile(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	p := make([]byte, r.Size())
	_, err = r.ReadAt(ctx, p, 0)
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// retryable reports whether an error only says that the cluster does not answer now.
func retryable(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.Unavailable, moraine.Timeout:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}
