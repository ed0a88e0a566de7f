package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/internal/testseed"
)

// evictor flushes and evicts the files of the other users.
type evictor struct {
	rng     *rand.Rand
	evicted atomic.Int64
}

// step flushes a file and drops its local bytes. Concurrent changes to the file may
// prevent that.
func (e *evictor) step(ctx context.Context, c *client.Client) error {
	attr, err := c.Stat(ctx, fmt.Sprintf("/user%d/f%d", e.rng.IntN(3), e.rng.IntN(6)))
	if errors.Is(err, moraine.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, kind := range []client.JobKind{client.JobFlush, client.JobEvict} {
		jobs, err := c.Jobs().Queue(ctx, kind, attr.Inode())
		if errors.Is(err, moraine.NotFound) {
			return nil
		}
		for _, j := range jobs {
			if err == nil {
				_, err = c.Jobs().Wait(ctx, j.ID, nil)
			}
		}
		if err != nil && !errors.Is(err, moraine.NotFound) {
			return err
		}
	}
	if now, err := c.Inodes().Stat(ctx, attr.Inode()); err == nil && now.Evicted() {
		e.evicted.Add(1)
	}
	return nil
}

// await returns when one more file is evicted, or no further eviction can be
// expected.
func (e *evictor) await() {
	before := e.evicted.Load()
	for end := time.Now().Add(testseed.Of(8*time.Second, 30*time.Second)); e.evicted.Load() == before && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
}

// TestRandomPowerCutsWithEvictionsLoseNothing runs the users of
// TestPowerCutsLoseNothing while another client evicts their files to a local
// bucket. It cuts the power of the bucket and of the cluster at random.
func TestRandomPowerCutsWithEvictionsLoseNothing(t *testing.T) {
	first, seeds, cuts := powerSeed(t), testseed.Runs(t, 1, 10), testseed.Of(3, 10)
	var mu sync.Mutex
	var all struct{ cuts, operations, evicted int }
	t.Run("histories", func(t *testing.T) {
		for i := range seeds {
			seed := first + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					bucket, err := localbucket.New(seed, nil)
					require.NoError(t, err)
					h, err := runHistoryOn(t.Context(), seed, cuts, nil, bucket)
					require.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					all.cuts, all.operations, all.evicted = all.cuts+h.cuts, all.operations+h.acked, all.evicted+int(h.evictor.evicted.Load())
				})
			})
		}
	})
	t.Logf("%d cuts, %d operations acknowledged, %d files evicted, 0 lost", all.cuts, all.operations, all.evicted)
	require.Positive(t, all.evicted, "nothing was evicted: the histories show nothing")
}
