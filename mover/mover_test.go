package mover_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/mover"
)

// tiny is a model of about 1 MiB: a few stripes and a tail for each rank.
var tiny = llama.Model{Layers: 1, Divide: 128}

// inCluster runs fn with a cluster under synctest's clock.
func inCluster(t *testing.T, opts memcluster.Options, fn func(t *testing.T, c *memcluster.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, stop := memcluster.Start(t, opts)
		defer stop()
		fn(t, c)
	})
}

// startMover runs the mover of a host until stop.
func startMover(t *testing.T, c *memcluster.Cluster, host string) (stop func()) {
	t.Helper()
	cl := c.Mover(host)
	m, err := mover.New(mover.Config{}, mover.Deps{Client: cl})
	require.NoError(t, err)
	return c.Run(func(ctx context.Context) error {
		defer cl.Close()
		return m.Run(ctx)
	})
}

// save saves a model from world ranks and waits until it is committed.
func save(t *testing.T, c *memcluster.Cluster, run string, step, seed uint64, world uint32) ckpt.StepInfo {
	t.Helper()
	ctx := t.Context()
	var saves []*ckpt.Part
	for rank := range world {
		cl := c.Client("trainer")
		r, err := ckpt.OpenRun(ctx, cl, run, ckpt.RunOptions{Launch: ckpt.Launch{Name: "l1"}, Rank: rank, World: world, StagingBytes: 64 << 20})
		require.NoError(t, err)
		defer func() {
			require.NoError(t, r.Close(ctx))
			require.NoError(t, cl.Close())
		}()
		s := llama.NewShard(tiny, rank, world)
		s.Fill(seed)
		sv, err := r.Begin(ctx, step, ckpt.BeginOptions{})
		require.NoError(t, err)
		require.NoError(t, s.AddTo(ctx, sv))
		require.NoError(t, sv.Seal(ctx))
		saves = append(saves, sv)
	}
	var info ckpt.StepInfo
	for _, s := range saves {
		var err error
		info, err = s.Wait(ctx, moraine.NVMe)
		require.NoError(t, err)
	}
	return info
}

// restore reads the latest step with world ranks, checks every byte, and
// verifies it.
func restore(t *testing.T, c *memcluster.Cluster, run string, seed uint64, world uint32) {
	t.Helper()
	ctx := t.Context()
	for rank := range world {
		cl := c.Client("restorer")
		r, err := ckpt.OpenRun(ctx, cl, run, ckpt.RunOptions{ReadOnly: true, Rank: rank, World: world})
		require.NoError(t, err)
		k, err := r.Resolve(ctx, ckpt.ResolveOptions{})
		require.NoError(t, err)
		s := llama.NewShard(tiny, rank, world)
		require.NoError(t, s.Restore(ctx, k))
		require.NoError(t, s.Check(seed))
		if rank == 0 {
			_, err := k.Verify(ctx)
			require.NoError(t, err)
		}
		require.NoError(t, k.Close())
		require.NoError(t, r.Close(ctx))
		require.NoError(t, cl.Close())
	}
}

func TestSaveCommitRestore(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		startMover(t, c, "n1")
		info := save(t, c, "/runs/a", 100, 7, 4)
		require.Equal(t, "attempt-1/step-100", info.Path)
		require.Equal(t, uint32(2), info.Protects)
		restore(t, c, "/runs/a", 7, 3)
	})
}
