"""Tests of moraine.fsspec: names, copies, pickles and errors. See test_checkpoint."""

import asyncio
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import uuid

import fsspec
import numpy as np
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from moraine import checkpoint, errors


@pytest.fixture
def fs():
    return fsspec.filesystem("moraine")


@pytest.fixture
def folder():
    return f"/names-{uuid.uuid4().hex[:12]}"


def data(n, seed=1):
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8).tobytes()


def test_directories_are_made_and_removed(fs, folder):
    fs.makedirs(f"{folder}/a/b")
    fs.makedirs(f"{folder}/a/b", exist_ok=True)
    for make in (fs.makedirs, fs.mkdir):
        with pytest.raises(FileExistsError):
            make(f"{folder}/a/b")
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{folder}/c/d", create_parents=False)
    fs.touch(f"{folder}/a/b/f")
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{folder}/a/b/f", exist_ok=True)
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{folder}/a/b")
    with pytest.raises(NotADirectoryError):
        fs.rmdir(f"{folder}/a/b/f")
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{folder}/a")
    fs.rm(f"{folder}/a/b/f")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{folder}/a/b/f")
    fs.rmdir(f"{folder}/a/b")
    fs.pipe({f"{folder}/t/{i}/x": b"x" for i in range(3)})
    fs.rm(f"{folder}/t/[01]", recursive=True)
    assert fs.find(folder) == [f"{folder}/t/2/x"]
    fs.rm(folder, recursive=True)
    assert not fs.exists(folder)


def test_files_are_moved_at_once_and_copied_without_bytes(fs, folder):
    want = data(3_000_000)
    fs.pipe_file(f"{folder}/a", want)
    version = fs.ukey(f"{folder}/a")
    fs.mv(f"{folder}/a", f"{folder}/new/b")
    assert fs.ukey(f"{folder}/new/b") == version and not fs.exists(f"{folder}/a")
    fs.cp(f"{folder}/new/b", f"{folder}/c")
    fs.cp(f"{folder}/new", f"{folder}/all", recursive=True)
    fs.pipe_file(f"{folder}/new/b", b"other")
    assert fs.cat_file(f"{folder}/c") == want and fs.cat_file(f"{folder}/all/b") == want
    assert fs.du(folder) == 2 * len(want) + 5
    fs.makedirs(f"{folder}/d")
    fs.mv(f"{folder}/all", f"{folder}/d", recursive=True)  # into a directory that is there
    fs.mv([f"{folder}/c", f"{folder}/new/b"], f"{folder}/d/")
    assert fs.find(folder) == [f"{folder}/d/all/b", f"{folder}/d/b", f"{folder}/d/c"]
    assert [d for d, _, _ in fs.walk(folder)] == [folder, f"{folder}/d", f"{folder}/d/all", f"{folder}/new"]
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{folder}/nothing", f"{folder}/x")
    with pytest.raises(FileNotFoundError):
        fs.cp(f"{folder}/nothing", f"{folder}/x")


def test_a_directory_is_not_read_as_an_empty_file(fs, folder):
    fs.makedirs(folder)
    for read in (fs.open, fs.cat_file, fs.view, lambda p: fs.cat_file(p, 0, 10)):
        with pytest.raises(IsADirectoryError):
            read(folder)


def test_walks_end_at_links(fs):
    run = f"/runs/links-{uuid.uuid4().hex[:12]}"
    with checkpoint.Run(run, launch=checkpoint.Launch("one")) as r:
        r.save({"w": np.zeros(1000)}, step=1, timeout=60)
    kinds = {os.path.basename(e["name"]): e["type"] for e in fs.ls(run)}
    assert kinds["latest"] == "link" and fs.isdir(f"{run}/latest")
    files = fs.find(run)
    assert files and not any("latest" in name for name in files)
    assert fs.glob(f"{run}/latest/*.safetensors")
    with pytest.raises(PermissionError):  # it is immutable
        fs.rm(run, recursive=True)
    with pytest.raises(PermissionError):
        fs.rm_file(fs.glob(f"{run}/latest/*.safetensors")[0])


def test_bytes_come_by_one_copy(fs, folder):
    """A read into a buffer does not pass the cache, and takes 16 MiB of the agent's memory at most."""
    want = data(40_000_003)
    fs.pipe_file(f"{folder}/a", want)
    got = bytearray(len(want) + 10)
    with fs.open(f"{folder}/a") as f:
        assert f.read(3) == want[:3]
        before = f.cache.total_requested_bytes
        assert f.readinto(memoryview(got)[3:]) == len(want) - 3 and f.tell() == len(want)
        assert f.cache.total_requested_bytes == before
        assert f.readinto(memoryview(got)[3:]) == 0
        f.seek(-100, os.SEEK_END)
        small = bytearray(60)
        assert f.readinto(small) == 60 and small == want[-100:-40]
        f.seek(0)
        assert f.read() == want
    assert got[3 : len(want)] == want[3:]
    assert fs.cat_file(f"{folder}/a") == want
    assert fs.cat_ranges([f"{folder}/a", f"{folder}/nothing", f"{folder}/a"], [-7, 0, 5], [None, 1, 5])[::2] == [want[-7:], b""]


def _rest(f, out):
    out.put(f.read())


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_an_open_file_goes_to_workers(fs, folder, start):
    want = data(2_000_000)
    fs.pipe_file(f"{folder}/a", want)
    context = multiprocessing.get_context(start)
    out = context.Queue()
    with fs.open(f"{folder}/a", block_size=1 << 16) as f:
        f.seek(1_500_000)
        assert f.read(10) == want[1_500_000:1_500_010]
        worker = context.Process(target=_rest, args=(f, out))
        worker.start()
        assert out.get(timeout=60) == want[1_500_010:]
        worker.join()
        assert f.read(10) == want[1_500_010:1_500_020]
        packed = pickle.dumps(f)
    fs.pipe_file(f"{folder}/a", b"other" * 500_000)
    with pytest.raises(errors.Stale):
        pickle.loads(packed).read()
    with fs.open(f"{folder}/b", "wb") as f, pytest.raises(TypeError, match="reading"):
        pickle.dumps(f)


def test_threads_share_a_file_system(fs, folder):
    want = {i: data(300_000, i) for i in range(8)}
    fs.pipe({f"{folder}/{i}": value for i, value in want.items()})
    got = {}
    threads = [threading.Thread(target=lambda i=i: got.update({i: fs.cat_file(f"{folder}/{i}")})) for i in want]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == want

    async def read():
        """As zarr does, in one event loop."""
        afs = AsyncFileSystemWrapper(fs)
        return await asyncio.gather(*(afs._cat_file(f"{folder}/{i}") for i in want))

    assert dict(zip(want, asyncio.run(read()), strict=True)) == want


def test_a_checksum_is_the_same_in_each_process(fs, folder):
    fs.pipe_file(f"{folder}/a", b"1")
    program = f"import fsspec; print(fsspec.filesystem('moraine').checksum('{folder}/a'))"
    first = fs.checksum(f"{folder}/a")
    assert int(subprocess.check_output([sys.executable, "-c", program])) == first
    assert fs.info(f"{folder}/a")["ETag"] == fs.ukey(f"{folder}/a")
    fs.pipe_file(f"{folder}/a", b"2")
    assert fs.checksum(f"{folder}/a") != first


def test_a_file_that_was_given_up_stays_so(fs, folder):
    f = fs.open(f"{folder}/a", "wb")
    f.write(data(10_000_000))
    f._sink.close()  # the agent ends
    with pytest.raises(errors.Unavailable):
        f.write(data(10_000_000))
    with pytest.raises(errors.Aborted, match="again"):
        f.close()
    assert not fs.exists(f"{folder}/a")
