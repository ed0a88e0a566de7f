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

# mount_arenas gives the job a tmpfs of its own with huge pages, or without where the kernel has none. The agent
# gives it the size that it needs.
mount_arenas() {
	if [ -z "$arena_dir" ] || [ -e "$shm_dir/$name" ]; then
		return 1
	fi
	grep -q "^moraine-arenas $arenas tmpfs " /proc/self/mounts && return
	mkdir -p "$arenas" || return
	for huge in ",huge=within_size" ",huge=advise" ""; do
		mount -t tmpfs -o "size=16m,mode=0700,nosuid,nodev,noexec$huge" moraine-arenas "$arenas" && made=yes && return
	done
	rmdir "$arenas"
	return 1
}
arenas=$arena_dir/$name
made=no
mount_arenas >>"$log" 2>&1 || arenas=$shm_dir/$name

setsid moraine agent --socket "$socket" --arena-dir "$arenas" --arena-memory "$arena_memory" --grace "$grace" --allow-user "$SLURM_JOB_UID" </dev/null >>"$log" 2>&1 &
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
if [ "$made" = yes ]; then
	umount -l "$arenas" && rmdir "$arenas"
fi
exit 0
