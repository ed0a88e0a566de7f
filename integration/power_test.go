package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object"
)

// This file cuts the power of a whole cluster repeatedly, at random file
// operations, while clients write, rename, remove and save checkpoints. It compares
// the result with the acknowledged operations (power_model_test.go). It runs on
// synctest's clock: the elections and timeouts of a history of minutes cost no
// time.

// powerHistory is a cluster with its users, from its first start on.
type powerHistory struct {
	rng   *rand.Rand
	c     *incluster.Cluster
	files []*fileUser
	steps *stepUser
	// bucket and evictor are nil without an object tier.
	bucket  *localbucket.Bucket
	evictor *evictor
	// stats
	cuts, partial, acked, unknown int
}

// historyPatience limits each wait of a history, on synctest's clock.
const historyPatience = 5 * time.Minute

// runHistory cuts the power cuts times and returns the first broken promise.
func runHistory(ctx context.Context, seed uint64, cuts int, rule func(string, vfs.Op) error) (h *powerHistory, err error) {
	return runHistoryOn(ctx, seed, cuts, rule, nil)
}

// runHistoryOn is runHistory with a local bucket, unless nil, to which files are
// evicted.
func runHistoryOn(ctx context.Context, seed uint64, cuts int, rule func(string, vfs.Op) error, bucket *localbucket.Bucket) (h *powerHistory, err error) {
	h = &powerHistory{bucket: bucket, rng: rand.New(rand.NewPCG(seed, 1)), steps: newStepUser(seed)}
	for i := range 3 {
		h.files = append(h.files, newFileUser(i, seed))
	}
	opts := incluster.Options{Seed: seed, Rule: rule, Grace: 3 * time.Second, SessionTimeout: 20 * time.Second}
	if bucket != nil {
		h.evictor = &evictor{rng: rand.New(rand.NewPCG(seed, 200))}
		opts.SettleTime = time.Second
		opts.Bucket = func(string) (object.Store, error) { return bucket, nil }
	}
	h.c, err = incluster.Start(ctx, opts)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, h.c.Stop()) }()
	for h.cuts < cuts {
		if err := h.life(ctx); err != nil {
			return h, fmt.Errorf("after cut %d: %w", h.cuts, err)
		}
	}
	if err := h.settle(ctx); err != nil {
		return h, fmt.Errorf("at the end, after cut %d: %w", h.cuts, err)
	}
	return h, nil
}

// settle waits until all nodes serve, and checks everything.
func (h *powerHistory) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	if err := h.c.WaitReady(ctx); err != nil {
		return err
	}
	c, err := h.c.Client(ctx, "checker")
	if err != nil {
		return err
	}
	for _, u := range h.files {
		if err := u.check(ctx, c.Client); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	if err := h.steps.check(ctx, c.Client); err != nil {
		return errors.Join(err, c.Close())
	}
	if err := c.Close(); err != nil {
		return err
	}
	return h.c.Check()
}

// life lasts from a start of all nodes, which is running, to the next one.
func (h *powerHistory) life(ctx context.Context) error {
	if h.rng.IntN(5) == 0 {
		return h.cutRecovery(ctx)
	}
	if err := h.settle(ctx); err != nil {
		return err
	}
	w := h.work(ctx)
	if h.evictor != nil {
		h.evictor.await() // so that each cut finds files that are only in the bucket
	}
	if h.rng.IntN(3) == 0 {
		if err := h.cutSome(ctx); err != nil {
			w.kill()
			return err
		}
	}
	cut := h.c.PowerCutAfter(1 + h.rng.IntN(1<<(4+h.rng.IntN(9))))
	h.await(cut)
	h.cuts++
	if h.rng.IntN(2) == 0 { // the clients lose their power too
		w.kill()
		h.note()
		return h.restart()
	}
	time.Sleep(time.Duration(h.rng.IntN(3000)) * time.Millisecond)
	err := h.restart()
	w.finish()
	h.note()
	return err
}

// restart restarts all nodes after a cut, and the bucket, which lost its power too.
func (h *powerHistory) restart() error {
	if h.bucket != nil {
		if err := h.bucket.Cut(h.rng); err != nil {
			return err
		}
	}
	return h.c.Restart()
}

// await returns when a planned cut has happened. It triggers the cut if no
// operation runs any more.
func (h *powerHistory) await(cut <-chan struct{}, nodes ...string) {
	select {
	case <-cut:
	case <-time.After(10 * time.Second):
		h.c.CancelCut()
		h.c.PowerCut(nodes...)
	}
}

// cutRecovery cuts the power while the nodes recover from the last cut.
func (h *powerHistory) cutRecovery(ctx context.Context) error {
	h.await(h.c.PowerCutAfter(1 + h.rng.IntN(1<<(4+h.rng.IntN(8)))))
	h.cuts++
	return h.restart()
}

// cutSome cuts or kills one or two nodes, without which a majority and any stripe
// survive. It restarts them or leaves that to the cut of all.
func (h *powerHistory) cutSome(ctx context.Context) error {
	var some []string
	if h.rng.IntN(2) == 0 {
		some = append(some, "m"+strconv.Itoa(1+h.rng.IntN(3)))
	}
	if len(some) == 0 || h.rng.IntN(2) == 0 {
		some = append(some, "n"+strconv.Itoa(1+h.rng.IntN(6)))
	}
	if h.rng.IntN(3) == 0 {
		time.Sleep(time.Duration(h.rng.IntN(500)) * time.Millisecond)
		h.c.Kill(some...)
	} else {
		h.await(h.c.PowerCutAfter(1+h.rng.IntN(500), some...), some...)
	}
	h.partial++
	time.Sleep(time.Duration(h.rng.IntN(2000)) * time.Millisecond)
	if h.rng.IntN(2) == 0 {
		return h.c.Restart(some...)
	}
	return nil
}

// note counts the users' answers in the life that ended.
func (h *powerHistory) note() {
	h.acked, h.unknown = h.steps.acks, 0
	for _, u := range h.files {
		h.acked += u.acks
		h.unknown += u.unknowns
	}
}

// crew is the users at work in one life.
type crew struct {
	cancel  context.CancelFunc
	stop    chan struct{}
	working sync.WaitGroup
}

// work runs all users until finish or kill.
func (h *powerHistory) work(ctx context.Context) *crew {
	ctx, cancel := context.WithCancel(ctx)
	w := &crew{cancel: cancel, stop: make(chan struct{})}
	for i, u := range h.files {
		w.user(ctx, h.c, fmt.Sprintf("c%d", i+1), func(c *incluster.Client) error { return u.step(ctx, c.Client) })
	}
	if h.evictor != nil {
		w.user(ctx, h.c, "evictor", func(c *incluster.Client) error { return h.evictor.step(ctx, c.Client) })
	}
	w.working.Go(func() { h.steps.work(ctx, h.c, w.stop) })
	return w
}

// user makes a client perform operations until it is told to stop or an operation
// fails; after that it is unknown what took effect.
func (w *crew) user(ctx context.Context, cluster *incluster.Cluster, name string, step func(*incluster.Client) error) {
	w.working.Go(func() {
		c, err := cluster.Client(ctx, name)
		if err != nil {
			return
		}
		for err == nil {
			select {
			case <-w.stop:
				c.Close() //nolint:errcheck // the session may be lost
				return
			default:
				err = step(c)
			}
		}
		if ctx.Err() != nil {
			c.Kill()
			return
		}
		c.Close() //nolint:errcheck
	})
}

// finish makes all users end after their current operation.
func (w *crew) finish() {
	close(w.stop)
	w.working.Wait()
	w.cancel()
}

// kill ends all users at once.
func (w *crew) kill() {
	w.cancel()
	w.working.Wait()
}

// powerSeed is the first of the seeds, 1 by default.
func powerSeed(t testing.TB) uint64 {
	t.Helper()
	return testseed.From(t, 1)
}

// TestPowerCutsLoseNothing cuts the power of a whole cluster: in the long form 30
// histories of 10 cuts each.
func TestPowerCutsLoseNothing(t *testing.T) {
	first, seeds, cuts := powerSeed(t), testseed.Runs(t, 1, 30), testseed.Of(4, 10)
	var met siteCounts
	t.Run("histories", func(t *testing.T) {
		for i := range seeds {
			seed := first + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h, err := runHistory(t.Context(), seed, cuts, met.rule)
					require.NoError(t, err)
					t.Logf("seed %d: %d cuts of all, %d of some; %d acknowledged, %d unknown, %d checkpoints, %d file operations",
						seed, h.cuts, h.partial, h.acked, h.unknown, len(h.steps.committed), h.c.Ops())
				})
			})
		}
	})
	require.Empty(t, met.unlisted(), "syncs that no test holds: list them")
}
