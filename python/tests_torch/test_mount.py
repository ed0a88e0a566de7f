"""Tests of what stock PyTorch reads from a mount of the cluster, which MORAINE_TEST_MOUNT names, and of links made there."""

import os
import uuid

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import open_run, run
from test_dcp import check, path, save_steps, whole  # noqa: F401
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from moraine.fsspec import MoraineFileSystem

MOUNT = os.environ.get("MORAINE_TEST_MOUNT", "")


def load_from_files(rank, world, folder):
    mesh = init_device_mesh("cpu", (world,))
    state = {
        "model.rows": distribute_tensor(torch.zeros(37, 24), mesh, [Shard(1)]),
        "model.columns": distribute_tensor(torch.zeros(37, 24, dtype=torch.bfloat16), mesh, [Shard(0)]),
        "model.few": torch.zeros(2, 3),
        "model.scalar": torch.tensor(0),
        "only-1.w": torch.zeros(37, 24),
    }
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
    assert torch.equal(state["model.rows"].full_tensor(), whole(2))
    assert torch.equal(state["model.columns"].full_tensor(), whole(3, torch.bfloat16))
    assert torch.equal(state["model.few"], whole(4, shape=(2, 3)))
    assert state["model.scalar"].item() == 2
    assert torch.equal(state["only-1.w"], whole(13))


@pytest.mark.skipif(not MOUNT, reason="nothing is mounted")
def test_the_hugging_face_reader_reads_a_step_from_a_mount(path):  # noqa: F811
    run(4, save_steps, path)
    with open_run(path, read_only=True) as r:
        assert r.open().step == 2
    run(3, load_from_files, f"{MOUNT}{path}/latest/")


@pytest.mark.skipif(not MOUNT, reason="nothing is mounted")
def test_a_link_to_a_file_is_that_file():
    """For moraine.fsspec, which cannot make links. One to a directory, or to nothing, is none of the files."""
    fs, folder = MoraineFileSystem(), f"/links-{uuid.uuid4().hex[:12]}"
    fs.pipe_file(f"{folder}/d/a", b"bytes")
    for name, target in {"to-a": "d/a", "to-d": "d", "up": "..", "broken": "nothing"}.items():
        os.symlink(target, f"{MOUNT}{folder}/{name}")
    assert fs.find(folder) == [f"{folder}/d/a", f"{folder}/to-a"]
    kinds = {e["name"].rsplit("/", 1)[1]: (e["type"], e["size"], e.get("islink", False)) for e in fs.ls(folder)}
    assert kinds == {
        "d": ("directory", 0, False), "to-a": ("file", 5, True), "to-d": ("link", 0, True), "up": ("link", 0, True), "broken": ("link", 0, True),
    }
    assert fs.cat_file(f"{folder}/to-d/a") == b"bytes"
    fs.rm_file(f"{folder}/to-a")  # the link alone
    assert fs.cat_file(f"{folder}/d/a") == b"bytes"
    fs.rm(folder, recursive=True)
