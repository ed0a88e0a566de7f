package ckpt_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
)

// TestAJobThatIsStartedAgain: torchrun starts with one run id again and again, each time before the sessions of
// the killed ranks have ended. Each start takes over at once, and continues from the newest step.
func TestAJobThatIsStartedAgain(t *testing.T) {
	inCluster(t, memcluster.Options{SessionTimeout: 20 * time.Second}, func(t *testing.T, c *memcluster.Cluster) {
		start := func(logs, restart string) (ranks []*trainer) {
			env := map[string]string{"TORCHELASTIC_RUN_ID": "llama", "TORCHELASTIC_RESTART_COUNT": restart, "GROUP_WORLD_SIZE": "1",
				"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_q8/llama_" + logs + "/attempt_" + restart + "/0/error.json"}
			for rank := range uint32(2) {
				tr, err := openTrainer(t, c, ckpt.LaunchFromEnv(func(k string) string { return env[k] }), false, rank, 2)
				require.NoError(t, err)
				ranks = append(ranks, tr)
			}
			return ranks
		}
		killed := start("x1", "0")
		saveAll(t, killed, 1, 11)
		for i, next := range [][2]string{{"x2", "0"}, {"x2", "1"}, {"x3", "0"}} {
			step := uint64(i + 1)
			ranks := start(next[0], next[1])
			for _, tr := range ranks {
				require.Equal(t, uint32(i+2), tr.run.Attempt())
				k, err := tr.run.Resolve(t.Context(), ckpt.ResolveOptions{Fix: true})
				require.NoError(t, err)
				require.Equal(t, step, k.Info.Step, "the newest step")
				require.NoError(t, k.Close())
			}
			late, err := killed[0].run.Begin(t.Context(), step+1, ckpt.BeginOptions{})
			require.NoError(t, err)
			_, err = late.Wait(t.Context(), moraine.NVMe)
			require.ErrorIs(t, err, moraine.Fenced)
			saveAll(t, ranks, step+1, 12+step)
			killed = ranks
		}
		holds(t, c, 4, 15, 2)
	})
}

// TestALaunchNameThatRepeats: a second start under the name of the first is not led to the step from which the first
// one went on. It gets Conflict, which names what to do, and can still read.
func TestALaunchNameThatRepeats(t *testing.T) {
	inCluster(t, memcluster.Options{SessionTimeout: 20 * time.Second}, func(t *testing.T, c *memcluster.Cluster) {
		first := team(t, c, "one", 2)
		fix := ckpt.ResolveOptions{Fix: true}
		_, err := first[0].run.Resolve(t.Context(), fix)
		require.ErrorIs(t, err, moraine.NotFound, "the attempt starts from nothing")
		late := team(t, c, "one", 2) // a rank that opens late, or again, before a step is committed
		_, err = late[1].run.Resolve(t.Context(), fix)
		require.ErrorIs(t, err, moraine.NotFound)
		saveAll(t, first, 1, 11)

		again := team(t, c, "one", 2)
		for _, tr := range again {
			for range 2 {
				_, err = tr.run.Resolve(t.Context(), fix)
				require.ErrorIs(t, err, moraine.Conflict)
				require.ErrorContains(t, err, "MORAINE_LAUNCH")
				require.ErrorContains(t, err, "step 1")
			}
			k, err := tr.run.Resolve(t.Context(), ckpt.ResolveOptions{})
			require.NoError(t, err)
			require.Equal(t, uint64(1), k.Info.Step)
			require.NoError(t, k.Close())
		}
		saveAll(t, first, 2, 12) // the first start goes on
		holds(t, c, 2, 12, 2)
	})
}
