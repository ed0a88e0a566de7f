"""Tests of the names of launches with stock torchrun. No agent is needed."""

import json
import os
import socket
import subprocess
import sys

PROGRAM = """
import json, os, sys, time, uuid
from moraine.checkpoint import launch_from_env
launch = launch_from_env()
path = os.path.join(sys.argv[1], uuid.uuid4().hex)
with open(path + ".new", "w") as f:
    json.dump([launch.name, launch.job, launch.restart, os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]], f)
os.rename(path + ".new", path)
if "fail" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while sum(not name.endswith(".new") for name in os.listdir(sys.argv[1])) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)  # torchrun ends the other ranks at the first failure
    sys.exit(1)
"""


def start(folder, args, nodes=1, program=()):
    """Run torchrun on some nodes, all of which are this host. Return the launch of each rank by count of restarts."""
    folder.mkdir()
    script = folder.with_suffix(".py")
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-id", "same", "--nnodes", str(nodes), "--nproc-per-node", "2", *args]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MORAINE_LAUNCH", "SLURM_"))}
    started = [subprocess.Popen([*command, str(script), str(folder), *program], env=env) for _ in range(nodes)]
    for torchrun in started:
        assert torchrun.wait(timeout=120) == 0
    launches = {}
    for found in folder.iterdir():
        *launch, _, count = json.loads(found.read_text())
        launches.setdefault(count, []).append(tuple(launch))
    return launches


def test_each_start_of_torchrun_has_a_name(tmp_path):
    """On one node with a fixed port, on one node with restarts, and on two nodes: ranks share a name, starts do not."""
    fixed = ["--master-port", "29571"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        store = f"localhost:{free.getsockname()[1]}"
    shared = ["--rdzv-backend", "c10d", "--rdzv-endpoint", store]
    starts = [
        start(tmp_path / "a", fixed),
        start(tmp_path / "b", fixed),
        start(tmp_path / "c", [*fixed, "--max-restarts", "1"], program=["fail"]),
        start(tmp_path / "d", shared, nodes=2),
        start(tmp_path / "e", shared, nodes=2),
    ]
    assert [{count: len(ranks) for count, ranks in launches.items()} for launches in starts] == [
        {"0": 2}, {"0": 2}, {"0": 2, "1": 2}, {"0": 4}, {"0": 4},
    ]
    names = [set(ranks) for launches in starts for ranks in launches.values()]
    assert all(len(shared) == 1 for shared in names)
    assert len({launch for shared in names for launch in shared}) == 6
    assert {(job, restart) for shared in names for _, job, restart in shared} == {("torchrun-same", 0)}
