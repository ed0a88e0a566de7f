package integration_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/testseed"
)

// TestARankThatDiesDuringARemoval kills a rank in the middle of a save, while an older
// checkpoint is removed: the save is committed whole or leaves nothing, and the removal ends.
func TestARankThatDiesDuringARemoval(t *testing.T) {
	seed := testseed.First(t)
	row := seed
	for _, door := range slices.Sorted(maps.Keys(removalDoors)) {
		if row++; row%3 != 0 && !testseed.Long() {
			continue // the short form has one of the three, by the seed
		}
		remove := removalDoors[door]
		t.Run(door, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRemovals(t, seed)
				last, first := uint64(testseed.Of(3, 12)), uint64(testseed.Of(2, 1))
				for step := last - 1; step >= first; step-- {
					r.rankDies(step, 2*last-step, remove)
					r.agree()
				}
				r.end()
			})
		})
	}
}

// rankDies removes a checkpoint while another one is saved, and kills one of the ranks.
func (r *removals) rankDies(old, next uint64, remove func(ctx context.Context, c *incluster.Client, run, step uint64) error) {
	r.t.Helper()
	remover := r.client()
	a, err := remover.Stat(r.ctx, stepRun)
	require.NoError(r.t, err)
	r.run = uint64(a.Inode())
	s := savedStep{step: next, seed: r.rng.Uint64(), size: 200_000}
	var ranks []*incluster.Client
	var g sync.WaitGroup
	saved := make([]error, stepWorld)
	for rank := range stepWorld {
		c := r.client()
		ranks = append(ranks, c)
		run, err := ckpt.OpenRun(r.ctx, c.Client, stepRun, ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, Rank: uint32(rank), World: stepWorld})
		require.NoError(r.t, err)
		g.Go(func() {
			saved[rank] = s.saveRank(r.ctx, run, rank)
			_ = run.Close(r.ctx) // its client may be dead
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- remove(r.ctx, remover, r.run, old) }()
	time.Sleep(time.Duration(r.rng.IntN(40_000)) * time.Microsecond)
	victim := r.rng.IntN(stepWorld)
	ranks[victim].Kill()
	require.NoError(r.t, <-ended, "the removal of step %d", old)
	r.gone[old] = true
	g.Wait()
	for rank, c := range ranks {
		if rank != victim {
			_ = c.Close() // what it saved is looked at below
		}
	}
	time.Sleep(sweptAfter)
	steps, err := ckpt.ListSteps(r.ctx, remover.Client, moraine.InodeID(r.run), false)
	require.NoError(r.t, err)
	committed := slices.ContainsFunc(steps, func(i ckpt.StepInfo) bool { return i.Step == s.step })
	r.t.Logf("step %d: rank %d died, the ranks got %v; committed: %t", s.step, victim, saved, committed)
	for rank, err := range saved {
		require.False(r.t, err == nil && !committed, "rank %d was told that step %d is saved", rank, s.step)
	}
	if committed {
		r.saved[s.step] = s // agree reads it
	}
	require.NoError(r.t, remover.Close())
}

// TestAGatewayThatDiesDuringARemoval kills the process of an S3 endpoint while a client deletes
// the objects of a checkpoint one after the other: the checkpoint is whole or gone, and S3, the
// list and the directories agree.
func TestAGatewayThatDiesDuringARemoval(t *testing.T) {
	t.Parallel()
	seed := testseed.First(t)
	rng := rand.New(rand.NewPCG(seed, 11))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	ctx := t.Context()
	cl := connect(t, c, client.Config{})
	saved := map[uint64]savedStep{}
	last := uint64(testseed.Of(4, 12))
	saveSteps(t, c, seed, last, saved)
	g := startS3(t, c, "", "")
	m := g.minio(t, nil)
	for step := uint64(1); step < last; step++ {
		bucket, dir, _ := strings.Cut(strings.TrimPrefix(stepDir(step), "/"), "/")
		removed := make(chan int, 1)
		go func() {
			n := 0
			for o := range m.RemoveObjects(ctx, bucket, m.ListObjects(ctx, bucket, minio.ListObjectsOptions{Prefix: dir + "/", Recursive: true}), minio.RemoveObjectsOptions{}) {
				if o.Err != nil {
					n++
				}
			}
			removed <- n
		}()
		time.Sleep(time.Duration(rng.IntN(30_000)) * time.Microsecond)
		require.NoError(t, g.Kill())
		refused := <-removed
		require.NoError(t, g.Start())
		ready, cancel := context.WithTimeout(ctx, time.Minute)
		require.NoError(t, g.Ready(ready))
		cancel()
		whole := wholeStep(t, cl, saved[step])
		t.Logf("step %d: whole %t, %d deletions failed", step, whole, refused)
	}
	if testseed.Long() {
		sweptSteps(t, cl, m, last)
	}
	run, err := ckpt.OpenRun(ctx, cl, stepRun, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	defer run.Close(ctx) //nolint:errcheck // it reads
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{})
	require.NoError(t, err)
	require.Equal(t, last, k.Info.Step)
	require.NoError(t, k.Close())
}

// saveSteps saves checkpoints 1 to last with a client for each rank.
func saveSteps(t *testing.T, c *devcluster.Cluster, seed, last uint64, saved map[uint64]savedStep) {
	t.Helper()
	var runs []*ckpt.Run
	for rank := range uint32(stepWorld) {
		run, err := ckpt.OpenRun(t.Context(), connect(t, c, client.Config{}), stepRun, ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, Rank: rank, World: stepWorld})
		require.NoError(t, err)
		defer run.Close(t.Context()) //nolint:errcheck // each save is waited for
		runs = append(runs, run)
	}
	for step := uint64(1); step <= last; step++ {
		s := savedStep{step: step, seed: seed + step, size: 20_000}
		errs := make([]error, stepWorld)
		var g sync.WaitGroup
		for rank, run := range runs {
			g.Go(func() { errs[rank] = s.saveRank(t.Context(), run, rank) })
		}
		g.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		saved[step] = s
	}
}

// wholeStep reports whether a checkpoint is there, whole. Else it has no index and is in no list:
// what is left of its files is nobody's checkpoint.
func wholeStep(t *testing.T, cl *client.Client, s savedStep) bool {
	t.Helper()
	_, indexErr := cl.Stat(t.Context(), path.Join(stepDir(s.step), ckpt.IndexName))
	if !listedSteps(t, cl)[s.step] {
		require.ErrorIs(t, indexErr, moraine.NotFound, "the index of step %d, which is not listed", s.step)
		return false
	}
	require.NoError(t, indexErr, "the index of step %d, which is listed", s.step)
	verifyStep(t, cl, s)
	return true
}

func listedSteps(t *testing.T, cl *client.Client) map[uint64]bool {
	t.Helper()
	run, err := cl.Stat(t.Context(), stepRun)
	require.NoError(t, err)
	steps, err := ckpt.ListSteps(t.Context(), cl, run.Inode(), false)
	require.NoError(t, err)
	listed := map[uint64]bool{}
	for _, i := range steps {
		listed[i.Step] = true
	}
	return listed
}

// sweptSteps waits until what is left of removed checkpoints is gone, a minute after the last
// deletion, also for S3.
func sweptSteps(t *testing.T, cl *client.Client, m *minio.Client, last uint64) {
	t.Helper()
	bucket, dir, _ := strings.Cut(strings.TrimPrefix(path.Dir(stepDir(1)), "/"), "/")
	listed := listedSteps(t, cl)
	why := ""
	for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(time.Second) {
		files := map[uint64]int{}
		for o := range m.ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Prefix: dir + "/", Recursive: true}) {
			require.NoError(t, o.Err)
			var step uint64
			_, err := fmt.Sscanf(path.Base(path.Dir(o.Key)), "step-%d", &step)
			require.NoError(t, err, o.Key)
			files[step]++
		}
		want := map[uint64]int{}
		for step := range listed {
			want[step] = stepFiles
		}
		if why = fmt.Sprintf("%v, want %v", files, want); maps.Equal(files, want) {
			return
		}
	}
	t.Fatalf("S3 has other files of steps than the list, of %d steps: %s", last, why)
}

// verifyStep reads a checkpoint back.
func verifyStep(t *testing.T, cl *client.Client, s savedStep) {
	t.Helper()
	run, err := ckpt.OpenRun(t.Context(), cl, stepRun, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	defer run.Close(t.Context()) //nolint:errcheck // it reads
	k, err := run.Resolve(t.Context(), ckpt.ResolveOptions{Step: s.step, Exact: true})
	require.NoError(t, err)
	defer k.Close() //nolint:errcheck // it reads
	_, err = k.Verify(t.Context())
	require.NoError(t, err)
	for rank := range stepWorld {
		b, err := k.ReadBlob(t.Context(), uint32(rank), "rng")
		require.NoError(t, err)
		require.Equal(t, s.bytes(rank, 100), b)
	}
}
