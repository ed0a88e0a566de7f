"""What a Python program with the stock safetensors package reads of a step.

Usage: safetensors_step.py save RUN | files DIRECTORY | bucket ENDPOINT BUCKET

`save` saves a step of two ranks through the agent. The others read its safetensors files, from a
directory or from a bucket, and compare each tensor with what was saved. Any difference ends it with
a traceback.
"""

import json
import pathlib
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load

WORLD = 2


def tensors(rank):
    """What a rank saves: tensors of its own, and half of a larger one."""
    rng = np.random.default_rng(rank)
    return {
        f"own-{rank}": rng.standard_normal((300, 257)).astype(np.float32),
        f"half-{rank}": rng.standard_normal(1001).astype(np.float16),
        f"numbers-{rank}": np.arange(rank * 10, rank * 10 + 12).reshape(3, 4),
        f"empty-{rank}": np.zeros((0, 3), np.uint8),
        "shared": np.arange(rank * 4000, rank * 4000 + 4000, dtype=np.int32).reshape(40, 100),
    }


def save(run):
    from moraine import checkpoint

    launch = checkpoint.Launch("one")
    runs = [checkpoint.Run(run, rank=rank, world=WORLD, launch=launch) for rank in range(WORLD)]
    saves = []
    for rank, r in enumerate(runs):
        state = tensors(rank)
        state["shared"] = checkpoint.Slice(state["shared"], (rank * 40, 0), (80, 100))
        saves.append(r.save_async(state, step=1, blobs={"rng": b"state"}))
    for s in saves:
        s.wait("nvme", timeout=60)


def check(name, got):
    (rank,) = (rank for rank in range(WORLD) if f"own-{rank}" in got)
    want = tensors(rank)
    assert got.keys() == want.keys(), (name, got.keys())
    for key, value in want.items():
        assert got[key].dtype == value.dtype, (name, key)
        np.testing.assert_array_equal(got[key], value, err_msg=f"{name} {key}")
    return rank


def files(directory):
    ranks = []
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        with safe_open(path, framework="numpy") as f:
            got = {key: f.get_tensor(key) for key in f.keys()}
            cut = f.get_slice("shared")[10:20, 5:7]
            offset = json.loads(f.metadata()["DCP_SHARDING_INFO"])["shared"]["saved_offsets"]
        ranks.append(check(path.name, got))
        np.testing.assert_array_equal(cut, got["shared"][10:20, 5:7])
        assert offset == [ranks[-1] * 40, 0], offset
    assert ranks == list(range(WORLD)), ranks


def bucket(endpoint, name):
    import boto3

    s3 = boto3.client("s3", endpoint_url=endpoint)
    keys = [o["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name) for o in page.get("Contents", [])]
    ranks = [check(key, load(s3.get_object(Bucket=name, Key=key)["Body"].read())) for key in keys if key.endswith(".safetensors")]
    assert sorted(ranks) == list(range(WORLD)), keys


if __name__ == "__main__":
    {"save": save, "files": files, "bucket": bucket}[sys.argv[1]](*sys.argv[2:])
