"""Tests of steps that stay in memory by the policy of their run.

MORAINE_TEST_CLI names the command `moraine`, which finds the cluster by itself.
"""

import os
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import open_run
from test_dcp import path  # noqa: F401

from moraine import errors
from moraine.torch import StorageReader, StorageWriter

CLI = os.environ.get("MORAINE_TEST_CLI", "")

pytestmark = pytest.mark.skipif(not CLI, reason="nothing sets the policy")


def moraine(*args):
    done = subprocess.run([CLI, *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def load(run, **select):
    state = {"w": torch.zeros(3)}
    reader = StorageReader(run, **select)
    dcp.load(state, storage_reader=reader)
    assert state["w"].tolist() == [11, 11, 11]
    return reader.checkpoint.level


def test_a_step_that_stays_in_memory_is_loaded_by_its_number(path):  # noqa: F811
    with open_run(path) as run:
        moraine("ckpt", "policy", f"moraine://{path}", "--level", "nvme", "--every", "10")
        writer = StorageWriter(run, step=11, level="memory")
        dcp.save({"w": torch.full((3,), 11.0)}, storage_writer=writer)
        writer.saved.wait("memory", timeout=60)
        assert load(run, step=11) == "memory"
    with open_run(path, launch="two") as run:
        for wrong in ({}, {"step": 11, "level": "nvme"}):
            with pytest.raises(errors.NotFound):
                StorageReader(run, **wrong).read_metadata()
        assert load(run, level="memory") == "memory"
        moraine("ckpt", "wait", f"moraine://{path}", "--step", "11", "--level", "nvme", "--timeout", "1m")
        assert load(run) == "nvme"
