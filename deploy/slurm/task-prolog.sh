#!/bin/bash
# TaskProlog of slurm.conf: names the agent to each task. Slurm adds what it prints after "export" to
# the environment of the task.
set -u
# shellcheck source=slurm.env
. "${MORAINE_SLURM_ENV:-/etc/moraine/slurm.env}"

socket=$run_dir/moraine-job-$SLURM_JOB_ID.sock
if [ -S "$socket" ]; then
	echo "export MORAINE_AGENT=$socket"
fi
