"""Tests of moraine.fsspec against a real agent and a real cluster. See test_checkpoint."""

import io
import multiprocessing
import os
import pickle
import uuid
from datetime import datetime, timedelta, timezone

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

from moraine import errors
from moraine.fsspec import MoraineFileSystem


@pytest.fixture
def fs():
    return fsspec.filesystem("moraine")


@pytest.fixture
def folder():
    return f"moraine:///files-{uuid.uuid4().hex[:12]}"


def data(n, seed=1):
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8).tobytes()


def test_the_protocol_is_known_after_the_installation():
    assert fsspec.get_filesystem_class("moraine") is MoraineFileSystem
    assert fsspec.url_to_fs("moraine:///data/a")[1] == "/data/a"
    assert fsspec.url_to_fs("moraine://data//a/")[1] == "/data/a"
    with pytest.raises(ValueError, match="moraine:///data/a"):
        fsspec.url_to_fs("moraine://host1:7400,host2/data/a")


def test_files_are_written_listed_and_read(fs, folder):
    want = data(20_000_001)
    with fsspec.open(f"{folder}/a/b", "wb") as f:
        for at in range(0, len(want), 3_000_000):
            f.write(want[at : at + 3_000_000])
        assert not fs.exists(f"{folder}/a/b")  # before its close it does not exist
    fs.pipe_file(f"{folder}/empty", b"")
    assert fs.cat_file(f"{folder}/a/b") == want
    assert fs.cat_file(f"{folder}/empty") == b""
    name = "/" + folder.removeprefix("moraine:///")
    assert fs.ls(folder, detail=False) == [f"{name}/a", f"{name}/empty"]
    assert fs.find(folder) == [f"{name}/a/b", f"{name}/empty"]
    info = fs.info(f"{folder}/a/b")
    assert (info["name"], info["size"], info["type"]) == (f"{name}/a/b", len(want), "file")
    assert fs.info(f"{folder}/a")["type"] == "directory"
    assert abs(fs.modified(f"{folder}/a/b") - datetime.now(timezone.utc)) < timedelta(hours=1)
    assert fs.glob(f"{folder}/*/b") == [f"{name}/a/b"]


def test_a_directory_of_many_pages_is_listed_whole(fs, folder, monkeypatch):
    monkeypatch.setattr("moraine.fsspec._PAGE", 3)
    for i in range(10):
        fs.pipe_file(f"{folder}/{i}", b"x")
    assert [name[-1] for name in fs.ls(folder, detail=False)] == list("0123456789")


def test_ranges_are_read_as_a_parquet_reader_does(fs, folder):
    arrays = {"x": np.arange(500_000), "y": np.random.default_rng(1).standard_normal((1000, 100))}
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # its directory is at the end, like that of parquet
    fs.pipe_file(f"{folder}/a.npz", packed.getvalue())
    with fsspec.open(f"{folder}/a.npz", block_size=1 << 16) as f:
        got = np.load(f)
        for key, want in arrays.items():
            np.testing.assert_array_equal(got[key], want)
    want = packed.getvalue()
    with fs.open(f"{folder}/a.npz", block_size=4096) as f:
        f.seek(-22, os.SEEK_END)
        assert f.read() == want[-22:]
        f.seek(100_003)
        assert f.read(200_001) == want[100_003:300_004]
        assert f.read(7) == want[300_004:300_011]
    assert fs.cat_file(f"{folder}/a.npz", -30, -8) == want[-30:-8]
    assert fs.cat_ranges([f"{folder}/a.npz"] * 2, [0, 70_000], [10, 70_100]) == [want[:10], want[70_000:70_100]]
    with fsspec.open(f"{folder}/text.gz", "wt", compression="gzip") as f:
        f.write("a line\n" * 1000)
    with fsspec.open(f"{folder}/text.gz", "rt", compression="gzip") as f:
        assert f.read() == "a line\n" * 1000


def test_a_view_is_the_memory_of_the_agent(fs, folder):
    want = data(5_000_000)
    fs.pipe_file(f"{folder}/a", want)
    view = fs.view(f"{folder}/a", 1_000_000, 3_000_000)
    assert view.readonly and view == want[1_000_000:3_000_000]
    array = np.frombuffer(view, np.uint8)
    with fs.open(f"{folder}/a", "wb") as f:
        f.write(b"other bytes")
    np.testing.assert_array_equal(array, np.frombuffer(want, np.uint8)[1_000_000:3_000_000])
    assert fs.view(f"{folder}/a") == b"other bytes"
    # Each view takes 2 MiB of the agent's 48, as long as it lives.
    for _ in range(60):
        view = fs.view(f"{folder}/a")
    assert view == b"other bytes"


def test_a_write_that_fails_leaves_no_file(fs, folder):
    with pytest.raises(RuntimeError), fs.open(f"{folder}/a", "wb") as f:
        f.write(data(20_000_000))
        raise RuntimeError
    assert not fs.exists(f"{folder}/a")
    with fs.transaction:
        fs.pipe_file(f"{folder}/a", b"whole")
        assert not fs.exists(f"{folder}/a")
    assert fs.cat_file(f"{folder}/a") == b"whole"


def test_a_file_that_changes_gives_no_mixture(fs, folder):
    fs.pipe_file(f"{folder}/a", b"a" * 100_000)
    with fs.open(f"{folder}/a", block_size=1000) as f:
        assert f.read(10) == b"a" * 10
        fs.pipe_file(f"{folder}/a", b"b" * 100_000)
        f.seek(50_000)
        assert f.read(10) == b"a" * 10  # this one has the file open
        f._source.conn.close()  # the agent was restarted
        f.seek(90_000)
        with pytest.raises(errors.Stale):
            f.read(10)


def test_errors_are_those_of_files(fs, folder):
    with pytest.raises(FileNotFoundError):
        fs.open(f"{folder}/nothing")
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{folder}/nothing")
    fs.pipe_file(f"{folder}/a", b"x")
    with pytest.raises(NotADirectoryError):
        fs.info(f"{folder}/a/b")
    with pytest.raises(FileExistsError), fs.open(f"{folder}/a", "xb") as f:
        f.write(b"y")
    assert fs.cat_file(f"{folder}/a") == b"x"
    for mode in ("ab", "a", "r+b", "rb+"):
        with pytest.raises(NotImplementedError, match="write another file, or use a mount"):
            fs.open(f"{folder}/a", mode)
    assert fs.cat_file(f"{folder}/a") == b"x"
    with pytest.raises(errors.Unavailable, match="moraine agent"):
        fsspec.open("moraine:///a", agent="/nonexistent/agent.sock").open()


def test_files_are_copied_from_and_to_the_disk(fs, folder, tmp_path):
    (tmp_path / "in").mkdir()
    want = {f"shard-{i}": data(300_000, i) for i in range(3)}
    for name, value in want.items():
        (tmp_path / "in" / name).write_bytes(value)
    fs.put(f"{tmp_path}/in", f"{folder}/set", recursive=True)
    fs.get(f"{folder}/set", f"{tmp_path}/out", recursive=True)
    assert {p: LocalFileSystem().cat_file(f"{tmp_path}/out/{p}") for p in os.listdir(tmp_path / "out")} == want


def _read(fs, path, out):
    out.put(fs.cat_file(path))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_too(fs, folder, start):
    """As those of a data loader do: forked while their parent has connections, or from a pickle."""
    fs.pipe_file(f"{folder}/a", b"bytes")
    assert fs.isfile(f"{folder}/a")  # on a connection of this thread
    assert pickle.loads(pickle.dumps(fs)) == fs
    context = multiprocessing.get_context(start)
    out = context.Queue()
    worker = context.Process(target=_read, args=(fs, f"{folder}/a", out))
    worker.start()
    assert out.get(timeout=30) == b"bytes"
    worker.join()
    assert fs.cat_file(f"{folder}/a") == b"bytes"
