package ckpt_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
)

// chunksOf counts the chunks of all hosts, and those of them whose device writes wait.
func chunksOf(c *memcluster.Cluster) (all, deferred int) {
	for _, h := range c.Hosts {
		h.Change(func(_ moraine.ChunkID, ch *memcluster.Chunk) bool {
			all++
			if ch.DeferredFor != 0 {
				deferred++
			}
			return true
		})
	}
	return all, deferred
}

// saveUnder saves a step from all ranks with options, and waits until it is committed.
func saveUnder(t *testing.T, team []*trainer, step uint64, opts ...ckpt.BeginOptions) ckpt.StepInfo {
	t.Helper()
	var saves []*ckpt.Part
	for rank, tr := range team {
		s := tr.begin(step, step, opts[rank%len(opts)])
		require.NoError(t, s.Seal(t.Context()))
		saves = append(saves, s)
	}
	var info ckpt.StepInfo
	for _, s := range saves {
		var err error
		info, err = s.Wait(t.Context(), moraine.Memory)
		require.NoError(t, err)
	}
	return info
}

// TestAStepStaysInMemoryByThePolicy: the parts and the index of such a step are put with the request to put off
// their device writes, and a wait for nvme lets them go on. A session that may not ask for that gets an
// error at once. If one rank wants nvme, the step goes on by itself.
func TestAStepStaysInMemoryByThePolicy(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		team := team(t, c, "l1", 2)
		run := team[0].run
		require.NoError(t, ckpt.SetPolicy(t.Context(), team[0].c, run.ID(), ckpt.Policy{{Level: moraine.NVMe, Every: 10}}))
		info := saveUnder(t, team, 3, ckpt.BeginOptions{})
		require.True(t, info.StaysInMemory)
		require.Equal(t, moraine.Memory, info.Level)
		all, deferred := chunksOf(c)
		require.Equal(t, all, deferred, "of the parts and the index")
		time.Sleep(time.Minute)
		_, deferred = chunksOf(c)
		require.Equal(t, all, deferred)
		require.EqualValues(t, info.Files, info.BelowNVMe)
		_, err := run.Resolve(t.Context(), ckpt.ResolveOptions{})
		require.ErrorIs(t, err, moraine.NotFound, "no step is at nvme")
		k, err := run.Resolve(t.Context(), ckpt.ResolveOptions{Level: moraine.Memory})
		require.NoError(t, err)
		require.NoError(t, team[0].shard.Restore(t.Context(), k))
		require.NoError(t, team[0].shard.Check(3))
		require.NoError(t, k.Close())

		confined := transport.Peer{Cluster: memcluster.ClusterID, Role: transport.RoleClient, Node: "reader", Scope: "/", ReadOnly: true}
		cl := c.Dial(confined, client.Config{Metadata: memcluster.Endpoints(), MemoryBytes: 64 << 20})
		reader, err := ckpt.OpenRun(t.Context(), cl, "/runs/deep/a", ckpt.RunOptions{ReadOnly: true})
		require.NoError(t, err)
		_, err = reader.WaitStep(t.Context(), 3, moraine.NVMe)
		require.ErrorIs(t, err, moraine.ReadOnly)
		require.ErrorContains(t, err, "the policy of the run leaves the step in memory")
		require.NoError(t, reader.Close(context.Background()))
		require.NoError(t, cl.Close())

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		info, err = run.WaitStep(ctx, 3, moraine.NVMe)
		require.NoError(t, err)
		holds(t, c, 3, 3, 2)
		require.Equal(t, moraine.NVMe, info.Level)
		require.False(t, info.StaysInMemory)

		for step, opts := range map[uint64][]ckpt.BeginOptions{
			10: {{}}, 11: {{Level: moraine.NVMe}}, 12: {{}, {Level: moraine.NVMe}},
		} {
			saveUnder(t, team, step, opts...)
			require.Eventually(t, func() bool {
				i, err := ckpt.GetStep(t.Context(), team[0].c, client.StepKey{Run: run.ID(), Attempt: run.Attempt(), Step: step})
				return err == nil && i.Level == moraine.NVMe && !i.StaysInMemory
			}, time.Minute, time.Second, "step %d", step)
		}
		require.True(t, saveUnder(t, team, 13, ckpt.BeginOptions{Level: moraine.Memory}).StaysInMemory)
		saveUnder(t, team, 20, ckpt.BeginOptions{})
		holds(t, c, 20, 20, 1)
	})
}
