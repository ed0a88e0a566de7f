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
	require.Equal(t, ckpt.Launch{Name: "torchrun-abc-restart-3", Job: "torchrun-abc", Restart: 3},
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
			require.Greater(t, l.Restart, last.Restart, l.Name)
		}
		last = l
	}
}
