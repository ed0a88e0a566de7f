"""Tests of checkpoints that stock PyTorch writes as files to a mount, and that become steps.

MORAINE_TEST_MOUNT names the mount, MORAINE_TEST_CLI the command `moraine`, which finds the cluster by itself.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from ranks import run
from test_dcp import blank_of, check, path, state_of  # noqa: F401
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

MOUNT = os.environ.get("MORAINE_TEST_MOUNT", "")
CLI = os.environ.get("MORAINE_TEST_CLI", "")

pytestmark = pytest.mark.skipif(not MOUNT or not CLI, reason="nothing is mounted")


def moraine(*args):
    done = subprocess.run([CLI, *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def save_files(rank, world, folder, seed):
    dcp.save(state_of(world, seed), storage_writer=FileSystemWriter(folder))


def load_files(rank, world, folder, seed):
    state = blank_of(world)
    dcp.load(state, storage_reader=FileSystemReader(folder))
    check(state, seed, rank)


def files_of(folder):
    folder = Path(folder)
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def check_step(at, step, want, seed, tmp_path):
    """The step has the files of the framework: through Moraine's reader, through a mount, and for `dcp.load`."""
    restored = tmp_path / f"restored-{step}"
    moraine("ckpt", "restore", f"moraine://{at}", str(restored), "--step", str(step))
    assert files_of(restored) == want
    run(4, load_files, str(restored), seed)
    found = [f.parent for f in Path(f"{MOUNT}{at}/step-{step}/").rglob(".metadata")]
    assert len(found) == 1, found
    assert {name: data for name, data in files_of(found[0]).items() if name in want} == want
    run(4, load_files, str(found[0]), seed)


def test_files_of_a_file_system_writer_become_a_step_by_a_command(path, tmp_path):  # noqa: F811
    folder = f"{MOUNT}{path}-files/save-1"
    os.makedirs(folder)
    run(4, save_files, folder, 7)
    want = files_of(folder)
    assert ".metadata" in want and len(want) == 5
    assert "is committed" in moraine("ckpt", "adopt", f"moraine://{path}-files/save-1", "--run", f"moraine://{path}", "--step", "7")
    run(4, save_files, folder, 8)  # the trainer goes on with its directory, and the step stays
    assert files_of(folder) != want
    check_step(path, 7, want, 7, tmp_path)
    adopt = ("ckpt", "adopt", f"moraine://{path}-files/save-1", "--run", f"moraine://{path}", "--step")
    moraine(*adopt, "8")  # what was written over the first save is complete, too
    first = min(Path(folder).glob("*.distcp"))
    first.write_bytes(first.read_bytes())  # as the first rank of a third save does
    refused = subprocess.run([CLI, *adopt, "9"], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1 and f"file {first.name} has changed after .metadata" in refused.stderr, refused
    moraine(*adopt, "9", "--complete")


def test_files_of_a_file_system_writer_become_a_step_by_a_policy(path, tmp_path):  # noqa: F811
    os.makedirs(f"{MOUNT}{path}")
    moraine("ckpt", "adopt", f"moraine://{path}", "--always", "dcp")
    folder = f"{MOUNT}{path}/save-20"
    run(4, save_files, folder, 20)
    want = files_of(folder)
    until = time.monotonic() + 120
    while subprocess.run([CLI, "ckpt", "show", f"moraine://{path}", "--step", "20"], capture_output=True).returncode != 0:
        assert time.monotonic() < until, moraine("job", "ls", "--all")
        time.sleep(0.5)
    check_step(path, 20, want, 20, tmp_path)
