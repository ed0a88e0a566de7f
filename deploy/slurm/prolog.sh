#!/bin/bash
# Prolog of slurm.conf: starts the agent of a job on this node. Slurm runs it as root.
# It never fails: Slurm would drain the node, and trainers can save without an agent.
set -u
# shellcheck source=slurm.env
. "${MORAINE_SLURM_ENV:-/etc/moraine/slurm.env}"

name=moraine-job-$SLURM_JOB_ID
socket=$run_dir/$name.sock
log=$run_dir/$name.log
pid_file=$run_dir/$name.pid

mkdir -p "$run_dir"
# A job that was requeued may find its agent, or the arenas that an earlier one left.
if [ -e "$pid_file" ] && kill -0 "$(cat "$pid_file")" 2>/dev/null; then
	exit 0
fi
rm -f "$socket"
setsid moraine agent --socket "$socket" --arena-dir "$shm_dir/$name" --arena-memory "$arena_memory" --grace "$grace" --allow-user "$SLURM_JOB_UID" </dev/null >>"$log" 2>&1 &
pid=$!
echo "$pid" >"$pid_file"

for _ in $(seq 300); do
	[ -S "$socket" ] && exit 0
	kill -0 "$pid" 2>/dev/null || break
	sleep 0.1
done
echo "moraine: no agent for job $SLURM_JOB_ID on $(hostname): see $log" >&2
kill -TERM "$pid" 2>/dev/null
rm -f "$pid_file"
exit 0
