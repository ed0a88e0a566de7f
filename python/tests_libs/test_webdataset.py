"""webdataset over shards in the cluster."""

import tarfile

import pytest
import torch
import webdataset as wds
from torch.utils.data import DataLoader

import moraine.webdataset

SAMPLES = 120


@pytest.fixture
def shards(fs, folder):
    """Write shards with the writer of webdataset, and return their pattern."""
    moraine.webdataset.register()
    with wds.ShardWriter(f"{folder}/s-%03d.tar", maxcount=30, verbose=0) as out:
        for i in range(SAMPLES):
            out.write({"__key__": f"k{i:04}", "bin": bytes([i]) * (5000 + i), "cls": str(i)})
    assert len(fs.ls(folder)) == 4
    return f"{folder}/s-{{000..003}}.tar"


def test_shards_are_written_and_read(shards, agent):
    got = {s["__key__"]: s for s in wds.WebDataset(shards, shardshuffle=False)}
    assert len(got) == SAMPLES
    for i in range(SAMPLES):
        assert got[f"k{i:04}"]["bin"] == bytes([i]) * (5000 + i) and got[f"k{i:04}"]["cls"] == str(i).encode()
    with wds.gopen(shards.replace("{000..003}", "001"), **agent) as f, tarfile.open(fileobj=f) as tar:
        assert sorted(tar.getnames())[0] == "k0030.bin"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_shards(shards, start):
    data = wds.WebDataset(shards, shardshuffle=False).decode().to_tuple("cls")
    next(iter(data))
    loader = DataLoader(data, batch_size=10, num_workers=2, multiprocessing_context=start, worker_init_fn=moraine.webdataset.register)
    assert sorted(torch.cat([c for (c,) in loader]).tolist()) == list(range(SAMPLES))


def test_shards_are_kept_on_the_disk(shards, tmp_path):
    for _ in range(2):
        data = wds.WebDataset(shards, shardshuffle=False, cache_dir=str(tmp_path))
        assert len(list(data)) == SAMPLES
    assert len(list(tmp_path.rglob("*.tar"))) == 4


def test_a_missing_shard_is_an_error(shards):
    with pytest.raises(FileNotFoundError):
        list(wds.WebDataset(shards.replace("003", "004"), shardshuffle=False))
