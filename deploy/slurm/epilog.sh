#!/bin/bash
# Epilog of slurm.conf: stops the agent of a job on this node. Slurm runs it as root. The agent first
# writes what is sealed to the cluster, for "grace" at most. If that was all, the arenas are removed.
# Otherwise they stay: when the job is started again on this node, its agent goes on with them.
# It never fails: Slurm would drain the node.
set -u
# shellcheck source=slurm.env
. "${MORAINE_SLURM_ENV:-/etc/moraine/slurm.env}"

name=moraine-job-$SLURM_JOB_ID
socket=$run_dir/$name.sock
pid_file=$run_dir/$name.pid
[ -e "$pid_file" ] || exit 0
pid=$(cat "$pid_file")
mounted() { grep -q "^moraine-arenas $arena_dir/$name tmpfs " /proc/self/mounts; }
arenas=$shm_dir/$name
mounted && arenas=$arena_dir/$name

if moraine ckpt push --agent "$socket" --deadline "$grace" >>"$run_dir/$name.log" 2>&1; then
	safe=yes
else
	safe=no
	echo "moraine: job $SLURM_JOB_ID left parts of checkpoints in $arenas on $(hostname): see $run_dir/$name.log" >&2
fi
kill -TERM "$pid" 2>/dev/null
while kill -0 "$pid" 2>/dev/null; do
	sleep 0.1
done
rm -f "$pid_file" "$socket"
if [ "$safe" = yes ]; then
	# A process of the job that hangs may still have memory of the agent: the kernel frees it when that ends.
	mounted && umount -l "$arenas"
	rm -rf "${arenas:?}"
	rm -f "$run_dir/$name.log"
fi
exit 0
