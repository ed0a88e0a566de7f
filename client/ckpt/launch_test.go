package ckpt_test

import (
	"testing"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/stretchr/testify/require"
)

func TestLaunchFromEnv(t *testing.T) {
	launch := func(pairs ...string) ckpt.Launch {
		env := make(map[string]string)
		for i := 0; i < len(pairs); i += 2 {
			env[pairs[i]] = pairs[i+1]
		}
		return ckpt.LaunchFromEnv(func(k string) string { return env[k] })
	}
	require.Equal(t, ckpt.Launch{}, launch())
	require.Equal(t, ckpt.Launch{}, launch("TORCHELASTIC_RUN_ID", "none", "TORCHELASTIC_RESTART_COUNT", "3"))
	require.Equal(t, ckpt.Launch{Name: "x", Job: "j", Restart: 2},
		launch("MORAINE_LAUNCH", "x", "MORAINE_JOB", "j", "MORAINE_RESTART", "2", "SLURM_JOB_ID", "9"))
	require.Equal(t, ckpt.Launch{Name: "torchrun-abc-restart-3", Job: "torchrun-abc"},
		launch("TORCHELASTIC_RUN_ID", "abc", "TORCHELASTIC_RESTART_COUNT", "3"))

	// Each is a later start of the job than the one before.
	var last ckpt.Launch
	names := map[string]bool{}
	for _, l := range []ckpt.Launch{
		launch("SLURM_JOB_ID", "9", "SLURM_STEP_ID", "0"),
		launch("SLURM_JOB_ID", "9", "SLURM_STEP_ID", "0", "TORCHELASTIC_RUN_ID", "a", "TORCHELASTIC_RESTART_COUNT", "1"),
		launch("SLURM_JOB_ID", "9", "SLURM_STEP_ID", "1"),
		launch("SLURM_JOB_ID", "9", "SLURM_STEP_ID", "2", "SLURM_RESTART_COUNT", "0"),
		launch("SLURM_JOB_ID", "9", "SLURM_STEP_ID", "0", "SLURM_RESTART_COUNT", "1"),
		launch("SLURM_JOB_ID", "9", "SLURM_STEP_ID", "4294967291", "SLURM_RESTART_COUNT", "2"),
	} {
		require.Equal(t, "slurm-9", l.Job)
		require.False(t, names[l.Name], l.Name)
		names[l.Name] = true
		if last.Name != "" {
			require.GreaterOrEqual(t, l.Restart, last.Restart, l.Name)
		}
		last = l
	}
}

// TestTorchrunThatIsStartedAgain: each start of torchrun has a name of its own, also under the same run
// id, and no start is late. The variables are those that torchrun of PyTorch 2.9 and 2.15 sets.
func TestTorchrunThatIsStartedAgain(t *testing.T) {
	rank := func(local, logs, port, restart string, more ...string) ckpt.Launch {
		env := map[string]string{"TORCHELASTIC_RUN_ID": "llama", "TORCHELASTIC_RESTART_COUNT": restart, "GROUP_WORLD_SIZE": "1",
			"MASTER_ADDR": "node7", "MASTER_PORT": port,
			"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_q8/llama_" + logs + "/attempt_" + restart + "/" + local + "/error.json"}
		for i := 0; i < len(more); i += 2 {
			env[more[i]] = more[i+1]
		}
		return ckpt.LaunchFromEnv(func(k string) string { return env[k] })
	}
	for _, at := range [][]string{
		{}, // one node: the port may be fixed
		{"SLURM_JOB_ID", "9"},
		{"MORAINE_LAUNCH", "mine"},
	} {
		first := rank("0", "x1", "29500", "0", at...)
		require.Equal(t, first, rank("1", "x1", "29500", "0", at...), "the ranks of one start share its name")
		names := map[string]bool{first.Name: true}
		for _, next := range []ckpt.Launch{rank("0", "x1", "29500", "1", at...), rank("0", "x2", "29500", "0", at...)} {
			require.Equal(t, first.Job, next.Job)
			require.NotEmpty(t, next.Job)
			require.Equal(t, first.Restart, next.Restart)
			if len(at) == 0 || at[0] != "MORAINE_LAUNCH" {
				require.False(t, names[next.Name], next.Name)
			}
			names[next.Name] = true
		}
		require.Greater(t, len(names), 1, "a restart by torchrun has a name of its own")
	}
	// Several nodes have directories of their own, and one store.
	nodes := []string{"GROUP_WORLD_SIZE", "2"}
	require.Equal(t, rank("0", "x1", "41001", "0", nodes...), rank("3", "y1", "41001", "0", nodes...))
	require.NotEqual(t, rank("0", "x1", "41001", "0", nodes...).Name, rank("0", "x2", "43577", "0", nodes...).Name)
}
