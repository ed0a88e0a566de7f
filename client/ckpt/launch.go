package ckpt

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Launch names one start of a training job.
type Launch struct {
	// Name is any string that all ranks of the start share and no other start has.
	Name string
	// Job is the scheduler's number of the job, empty if there is none. Restart orders the starts of
	// one job: one with a lesser Restart than another is late, and the service refuses it. Of starts
	// with the same Restart, the one that opens the run last is the later.
	Job     string
	Restart uint64
}

// LaunchFromEnv determines which start of which job a process belongs to. getenv is os.Getenv,
// or a test's replacement. MORAINE_LAUNCH (with MORAINE_JOB and MORAINE_RESTART, if given)
// takes precedence. Then come Slurm's job, requeue count and step, then torchrun's run id,
// alone or within Slurm's job. torchrun's default run id ("none") is ignored,
// because all jobs share it. An empty Name means that nothing was found: MORAINE_LAUNCH must be
// set.
//
// torchrun starts its ranks again after a failure, and counts that. So the count is in each name. The
// count begins again at 0 when torchrun itself is started again. What tells such starts apart is in
// the name too: see startOfTorchrun.
//
// If a Slurm job starts one `srun` for each node, the ranks do not share a step: set
// MORAINE_LAUNCH. Set it also where torchrun uses several nodes and a fixed --master-port.
func LaunchFromEnv(getenv func(string) string) Launch {
	torchRun := getenv("TORCHELASTIC_RUN_ID")
	torchRestart := number(getenv("TORCHELASTIC_RESTART_COUNT"), 1<<16)
	if name := getenv("MORAINE_LAUNCH"); name != "" {
		l := Launch{Name: name, Job: getenv("MORAINE_JOB"), Restart: number(getenv("MORAINE_RESTART"), 1<<63)}
		if torchRun != "" && l.Job == "" {
			l.Job = "launch-" + name // torchrun's restarts of it take over at once
		}
		if torchRestart > 0 {
			l.Name = fmt.Sprintf("%s-restart-%d", name, torchRestart)
		}
		return l
	}
	start := startOfTorchrun(getenv)
	if job := getenv("SLURM_JOB_ID"); job != "" {
		requeue := number(getenv("SLURM_RESTART_COUNT"), 1<<20)
		step := number(getenv("SLURM_STEP_ID"), 1<<24)
		return Launch{
			Name: fmt.Sprintf("slurm-%s.%d-requeue-%d%s-restart-%d", job, step, requeue, start, torchRestart),
			Job:  "slurm-" + job,
			// A later requeue orders after all steps of earlier ones. torchrun's count does not order: a
			// script may start torchrun again in the same step.
			Restart: requeue<<40 | step<<16,
		}
	}
	if torchRun != "" && torchRun != "none" {
		return Launch{
			Name: fmt.Sprintf("torchrun-%s%s-restart-%d", torchRun, start, torchRestart),
			Job:  "torchrun-" + torchRun,
		}
	}
	return Launch{}
}

// startOfTorchrun returns what all ranks of one start of torchrun share and no other start has, with a
// dash before it; empty without torchrun. On one node it is the name of the directory that torchrun makes
// for its logs. On several nodes it is the address of the store: torchrun takes a free port for it,
// unless --master-port gives a fixed one. Then names repeat, and the service refuses the second start.
func startOfTorchrun(getenv func(string) string) string {
	id, port := getenv("TORCHELASTIC_RUN_ID"), getenv("MASTER_PORT")
	if id == "" {
		return ""
	}
	// <directory of logs>/<run id>_<random>/attempt_<n>/<local rank>/error.json
	logs := path.Base(path.Dir(path.Dir(path.Dir(getenv("TORCHELASTIC_ERROR_FILE")))))
	if random, ok := strings.CutPrefix(logs, id+"_"); ok && random != "" && getenv("GROUP_WORLD_SIZE") == "1" {
		return "-" + random
	}
	if port == "" {
		return ""
	}
	return "-" + getenv("MASTER_ADDR") + ":" + port
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
