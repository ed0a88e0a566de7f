package ckpt

import (
	"fmt"
	"strconv"
)

// Launch names one start of a training job.
type Launch struct {
	// Name is any string that all ranks of the start share and no other start has.
	Name string
	// Job is the scheduler's number of the job, empty if there is none. Restart says how often
	// the job was restarted: of two starts of one job, the one with the greater Restart is the
	// later.
	Job     string
	Restart uint64
}

// LaunchFromEnv determines which start of which job a process belongs to. getenv is os.Getenv,
// or a test's replacement. MORAINE_LAUNCH (with MORAINE_JOB and MORAINE_RESTART, if given)
// takes precedence. Then come Slurm's job, requeue count and step, then torchrun's run id and
// restart count, alone or within Slurm's job. torchrun's default run id ("none") is ignored,
// because all jobs share it. An empty Name means that nothing was found: MORAINE_LAUNCH must be
// set.
//
// If a Slurm job starts one `srun` for each node, the ranks do not share a step: set
// MORAINE_LAUNCH.
func LaunchFromEnv(getenv func(string) string) Launch {
	if name := getenv("MORAINE_LAUNCH"); name != "" {
		return Launch{Name: name, Job: getenv("MORAINE_JOB"), Restart: number(getenv("MORAINE_RESTART"), 1<<63)}
	}
	torchRun := getenv("TORCHELASTIC_RUN_ID")
	torchRestart := number(getenv("TORCHELASTIC_RESTART_COUNT"), 1<<16)
	if job := getenv("SLURM_JOB_ID"); job != "" {
		requeue := number(getenv("SLURM_RESTART_COUNT"), 1<<20)
		step := number(getenv("SLURM_STEP_ID"), 1<<24)
		return Launch{
			Name: fmt.Sprintf("slurm-%s.%d-requeue-%d-restart-%d", job, step, requeue, torchRestart),
			Job:  "slurm-" + job,
			// A later requeue orders after all steps of earlier ones, and a later step after all
			// restarts of earlier ones.
			Restart: requeue<<40 | step<<16 | torchRestart,
		}
	}
	if torchRun != "" && torchRun != "none" {
		return Launch{
			Name:    fmt.Sprintf("torchrun-%s-restart-%d", torchRun, torchRestart),
			Job:     "torchrun-" + torchRun,
			Restart: torchRestart,
		}
	}
	return Launch{}
}

// number reads a count below limit. It returns 0 for anything else (Slurm numbers its batch and
// interactive steps down from 2^32).
func number(s string, limit uint64) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n >= limit {
		return 0
	}
	return n
}
