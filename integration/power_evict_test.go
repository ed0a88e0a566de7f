package integration_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object"
)

// errEvictedLost is the error of a history in which acknowledged bytes are lost.
var errEvictedLost = errors.New("acknowledged bytes are lost")

// errPowerOff is the error of each call of a bucket's disk while its power is off.
var errPowerOff = errors.New("the power is off")

// evictHistory is a cluster and its local bucket. Each round writes files, flushes and
// evicts them, cuts the power of all machines, starts them again and reads all files back.
type evictHistory struct {
	rng    *rand.Rand
	c      *incluster.Cluster
	bucket *localbucket.Bucket
	lie    vfs.Rule // called before each call of the bucket's disk; nil: never

	off   atomic.Bool  // the bucket has no power
	after atomic.Int64 // calls of the bucket's disk until the power cut; 0: none is planned
	gone  chan struct{}

	// put is the model: the acknowledged contents of each file.
	put     map[string]content
	away    map[string]bool // files of this round whose eviction was acknowledged
	cuts    int
	amid    int // cuts that fell into a flush or an eviction
	written int
	evicted int // evictions that were acknowledged
}

// runEvictHistory runs so many rounds and returns the first broken promise.
func runEvictHistory(ctx context.Context, seed uint64, rounds int, lie vfs.Rule) (h *evictHistory, err error) {
	h = &evictHistory{rng: rand.New(rand.NewPCG(seed, 300)), lie: lie, put: map[string]content{}, away: map[string]bool{}}
	if h.bucket, err = localbucket.New(seed, h.call); err != nil {
		return h, err
	}
	h.c, err = incluster.Start(ctx, incluster.Options{Seed: seed, Grace: 3 * time.Second, SessionTimeout: 20 * time.Second,
		SettleTime: time.Second, // a key with an interrupted upload is flushed to again after that
		Bucket:     func(string) (object.Store, error) { return h.bucket, nil }})
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, h.c.Stop()) }()
	for h.cuts < rounds {
		if err := h.round(ctx); err != nil {
			return h, fmt.Errorf("cut %d: %w", h.cuts, err)
		}
	}
	return h, h.c.Check()
}

// call is called before each call of the bucket's disk.
func (h *evictHistory) call(op vfs.Op) error {
	if h.off.Load() {
		return errPowerOff
	}
	if h.after.Load() > 0 && h.after.Add(-1) == 0 {
		h.powerOff()
		close(h.gone)
		return errPowerOff
	}
	if h.lie != nil {
		return h.lie(op)
	}
	return nil
}

// powerOff cuts the power of all machines.
func (h *evictHistory) powerOff() {
	h.off.Store(true)
	h.c.PowerCut()
}

// round is one cut. Three in four come as soon as the last eviction is
// acknowledged. The others come at a random call of a disk while files are flushed
// and evicted.
func (h *evictHistory) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	c, err := h.c.Client(ctx, "user")
	if err != nil {
		return err
	}
	inodes, err := h.write(ctx, c.Client)
	if err != nil {
		return err
	}
	if h.cuts++; h.rng.IntN(4) > 0 {
		err = h.evict(ctx, c.Client, inodes)
		h.powerOff()
	} else {
		h.amid++
		h.cutAmid(ctx, c.Client, inodes)
	}
	c.Kill()
	if err != nil {
		return err
	}
	h.after.Store(0)
	if err := h.c.Restart(); err != nil { // when this returns, the previous processes have ended
		return err
	}
	h.off.Store(false)
	if err := errors.Join(h.bucket.Cut(h.rng), h.c.WaitReady(ctx)); err != nil {
		return err
	}
	return h.check(ctx)
}

// write writes some new and some existing files, and commits them.
func (h *evictHistory) write(ctx context.Context, c *client.Client) (inodes map[string]moraine.InodeID, err error) {
	inodes, h.away = map[string]moraine.InodeID{}, map[string]bool{}
	sizes := []int{1, 4096, 64 << 10, 200 << 10}
	for range 2 + h.rng.IntN(3) {
		name, data := fmt.Sprintf("/f%d", h.rng.IntN(12)), make([]byte, sizes[h.rng.IntN(len(sizes))]+h.rng.IntN(100))
		fill(data, h.rng.Uint64())
		f, err := c.Create(ctx, name, client.CreateOptions{Replace: true, Scheme: schemes[h.rng.IntN(len(schemes))]})
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(data); err != nil {
			return nil, err
		}
		if _, err := f.Commit(ctx); err != nil {
			return nil, err
		}
		h.written++
		h.put[name], inodes[name] = sha256.Sum256(data), f.Inode()
	}
	return inodes, nil
}

// evict flushes files and then evicts them, each by a request of a client, as
// `moraine flush` and `moraine evict` do. It returns as soon as the last one is
// acknowledged.
func (h *evictHistory) evict(ctx context.Context, c *client.Client, inodes map[string]moraine.InodeID) error {
	ids := slices.Sorted(maps.Values(inodes))
	for _, kind := range []client.JobKind{client.JobFlush, client.JobEvict} {
		jobs, err := c.Jobs().Queue(ctx, kind, ids...)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			last := j
			done, err := c.Jobs().Wait(ctx, j.ID, func(j client.Job) { last = j })
			if err != nil {
				return fmt.Errorf("wait for %v: %w", last, err)
			}
			if done.State != client.JobDone {
				return fmt.Errorf("job %v: %v, %s", done.Kind, done.State, done.Error)
			}
			if kind == client.JobEvict {
				h.noteEvicted(inodes, done.Inode)
			}
		}
	}
	return nil
}

func (h *evictHistory) noteEvicted(inodes map[string]moraine.InodeID, inode moraine.InodeID) {
	for name, id := range inodes {
		if id == inode {
			h.away[name] = true
			h.evicted++
		}
	}
}

// cutAmid cuts the power while files are flushed and evicted: before a random call
// of the bucket's disk, or of any other. A file whose eviction is not acknowledged
// by then may or may not be evicted.
func (h *evictHistory) cutAmid(ctx context.Context, c *client.Client, inodes map[string]moraine.InodeID) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	h.gone = make(chan struct{})
	var cut <-chan struct{}
	if h.rng.IntN(3) > 0 {
		cut = h.gone
		h.after.Store(1 + h.rng.Int64N(120))
	} else {
		cut = h.c.PowerCutAfter(1 + h.rng.IntN(1<<(4+h.rng.IntN(8))))
	}
	go func() {
		defer close(ended)
		_ = h.evict(ctx, c, inodes) // it fails at the power cut
	}()
	select {
	case <-cut:
	case <-ended:
	}
	h.c.CancelCut()
	h.powerOff()
	cancel()
	<-ended
}

// check reads all files and compares them with the model. A file whose eviction was
// acknowledged must be evicted: its bytes come from the bucket.
func (h *evictHistory) check(ctx context.Context) error {
	c, err := h.c.Client(ctx, "checker")
	if err != nil {
		return err
	}
	defer c.Close()            //nolint:errcheck // it only reads
	for name := range h.away { // before any read, which may stage it
		if attr, err := c.Stat(ctx, name); err != nil || !attr.Evicted() {
			return fmt.Errorf("%s was evicted by an acknowledged request, and is not now: %v, %w", name, attr, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.put)) {
		sum, err := readDigest(ctx, c.Client, name)
		if err == nil && sum != h.put[name] {
			err = errors.New("other bytes")
		}
		if err != nil {
			return fmt.Errorf("%w: %s (evicted in this round: %v): %w", errEvictedLost, name, h.away[name], err)
		}
	}
	return nil
}

// TestPowerCutsWithEvictionsLoseNothing evicts files to the local bucket. It cuts
// the power of the bucket and of the cluster, most often as soon as the last
// eviction is acknowledged. It then reads every file back: 100 cuts in the long
// form. TestPowerCutsOfTheBucketHaveTeeth leaves out the bucket's syncs.
func TestPowerCutsWithEvictionsLoseNothing(t *testing.T) {
	first, seeds, cuts := powerSeed(t), testseed.Runs(t, 1, 10), testseed.Of(4, 10)
	var met bucketSyncs
	var mu sync.Mutex
	var all struct{ cuts, amid, written, evicted int }
	t.Run("histories", func(t *testing.T) {
		for i := range seeds {
			seed := first + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h, err := runEvictHistory(t.Context(), seed, cuts, met.rule)
					require.NoError(t, err)
					require.Positive(t, h.evicted, "nothing was evicted: the history shows nothing")
					mu.Lock()
					defer mu.Unlock()
					all.cuts, all.amid, all.written, all.evicted = all.cuts+h.cuts, all.amid+h.amid, all.written+h.written, all.evicted+h.evicted
				})
			})
		}
	})
	t.Logf("%d cuts (%d of them amid a flush or an eviction), %d files written, %d evicted, 0 lost", all.cuts, all.amid, all.written, all.evicted)
	require.Empty(t, met.unlisted(), "syncs of the bucket that no test holds: list them")
}
