"""Tests of moraine.fsspec: what pandas, pyarrow, datasets and others call. Each call works, or raises an error that
says what it is. See test_checkpoint.
"""

import uuid
from datetime import datetime, timedelta, timezone

import fsspec
import pytest


@pytest.fixture
def fs():
    return fsspec.filesystem("moraine")


@pytest.fixture
def tree(fs):
    folder = f"/calls-{uuid.uuid4().hex[:12]}"
    fs.pipe({f"{folder}/a": b"0123456789", f"{folder}/d/b.csv": b"x,y\n1,2\n", f"{folder}/d/e/c.csv": b"3"})
    return folder


def test_times(fs, tree):
    """pyarrow, dask and zict ask for `modified`, some caches for `created`."""
    now = datetime.now(timezone.utc)
    assert abs(fs.modified(f"{tree}/a") - now) < timedelta(minutes=10)
    assert fs.info(f"{tree}/a")["mtime"] == pytest.approx(fs.modified(f"{tree}/a").timestamp(), abs=1e-5)
    with pytest.raises(NotImplementedError, match=r"modified\(\) says"):
        fs.created(f"{tree}/a")
    for ask in (fs.modified, fs.created):
        with pytest.raises(FileNotFoundError):
            ask(f"{tree}/nothing")


def test_touch(fs, tree):
    fs.touch(f"{tree}/new/file")
    assert fs.size(f"{tree}/new/file") == 0
    fs.touch(f"{tree}/new/file2", truncate=False)
    with pytest.raises(NotImplementedError, match="cannot be set"):
        fs.touch(f"{tree}/a", truncate=False)
    assert fs.cat_file(f"{tree}/a") == b"0123456789"
    fs.touch(f"{tree}/a")
    assert fs.cat_file(f"{tree}/a") == b""


def test_what_finds_files(fs, tree):
    assert fs.glob(f"{tree}/**/*.csv") == [f"{tree}/d/b.csv", f"{tree}/d/e/c.csv"]
    assert fs.glob(f"{tree}/*") == [f"{tree}/a", f"{tree}/d"]
    assert fs.glob(f"{tree}/d/?.csv", detail=True)[f"{tree}/d/b.csv"]["size"] == 8
    assert fs.glob(f"{tree}/nothing*") == []
    assert fs.glob(f"{tree}/a") == [f"{tree}/a"]
    assert list(fs.walk(tree)) == [(tree, ["d"], ["a"]), (f"{tree}/d", ["e"], ["b.csv"]), (f"{tree}/d/e", [], ["c.csv"])]
    assert [at for at, _, _ in fs.walk(tree, topdown=False)] == [f"{tree}/d/e", f"{tree}/d", tree]
    assert [at for at, _, _ in fs.walk(tree, maxdepth=1)] == [tree]
    assert list(fs.walk(f"{tree}/nothing")) == []
    with pytest.raises(FileNotFoundError):
        list(fs.walk(f"{tree}/nothing", on_error="raise"))
    assert fs.find(f"{tree}/d", detail=True)[f"{tree}/d/e/c.csv"]["type"] == "file"
    assert fs.du(tree) == 19
    assert fs.du(tree, total=False) == {f"{tree}/a": 10, f"{tree}/d/b.csv": 8, f"{tree}/d/e/c.csv": 1}
    assert fs.sizes([f"{tree}/a", f"{tree}/d/b.csv"]) == [10, 8]
    assert fs.expand_path(f"{tree}/d", recursive=True) == [f"{tree}/d", f"{tree}/d/b.csv", f"{tree}/d/e", f"{tree}/d/e/c.csv"]
    assert (fs.isdir(tree), fs.isfile(tree), fs.isdir(f"{tree}/a"), fs.isfile(f"{tree}/a"), fs.isfile(f"{tree}/x")) == (True, False, False, True, False)
    assert fs.lexists(f"{tree}/a") and not fs.lexists(f"{tree}/x")


def test_what_reads(fs, tree):
    a = f"{tree}/a"
    assert (fs.head(a, 3), fs.tail(a, 3), fs.read_block(a, 2, 3)) == (b"012", b"789", b"234")
    assert fs.cat([a, f"{tree}/d/b.csv"]) == {a: b"0123456789", f"{tree}/d/b.csv": b"x,y\n1,2\n"}
    assert list(fs.cat([a, f"{tree}/nothing"], on_error="omit")) == [a]
    assert fs.cat_ranges([a, a, a], [0, -3, None], [2, None, 4]) == [b"01", b"789", b"0123"]
    assert fs.cat_ranges([a, a], 1, 3) == [b"12", b"12"]
    got = fs.cat_ranges([a, f"{tree}/nothing"], 0, 1)
    assert got[0] == b"0" and isinstance(got[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{tree}/nothing"], 0, 1, on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges([a, a], [0], [1])
    assert fs.read_text(a) == "0123456789" and fs.read_bytes(a, start=8) == b"89"
    with fs.open(a) as f:
        assert (f.readable(), f.writable(), f.seekable(), f.read(2), f.tell(), f.seek(-1, 2), f.read()) == (True, False, True, b"01", 2, 9, b"9")


def test_what_writes(fs, tree):
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{tree}/a", b"other", mode="create")
    assert fs.cat_file(f"{tree}/a") == b"0123456789"
    fs.write_text(f"{tree}/text", "line")
    fs.cp(f"{tree}/a", f"{tree}/copy")
    fs.copy(f"{tree}/d", f"{tree}/d2", recursive=True)
    fs.mv(f"{tree}/copy", f"{tree}/moved")
    fs.rename(f"{tree}/text", f"{tree}/text2")
    assert fs.find(tree) == [f"{tree}/{p}" for p in ("a", "d/b.csv", "d/e/c.csv", "d2/b.csv", "d2/e/c.csv", "moved", "text2")]
    fs.rm([f"{tree}/moved", f"{tree}/text2"])
    fs.delete(f"{tree}/d2", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{tree}/nothing", f"{tree}/x")
    for mode in ("ab", "at", "r+b"):
        with pytest.raises(NotImplementedError, match="write another file"):
            fs.open(f"{tree}/a", mode)
    with pytest.raises(NotImplementedError, match="write another file"), fsspec.open(f"moraine://{tree}/a", "a") as f:
        f.write("more")
    assert fs.cat_file(f"{tree}/a") == b"0123456789"


def test_what_mappings_and_urls_need(fs, tree):
    """zarr reads and writes through a mapping; caches name files by URL."""
    m = fs.get_mapper(f"{tree}/map")
    m["x/0"] = b"chunk"
    assert list(m) == ["x/0"] and m["x/0"] == b"chunk" and "y" not in m
    with pytest.raises(KeyError):
        m["y"]
    del m["x/0"]
    assert list(m) == []
    assert fs.unstrip_protocol(f"{tree}/a") == f"moraine://{tree}/a"
    assert fsspec.AbstractFileSystem.from_json(fs.to_json()) == fs
    assert len({fs.ukey(f"{tree}/a"), fs.ukey(f"{tree}/d/b.csv")}) == 2
    with pytest.raises(NotImplementedError, match="S3 endpoint"):
        fs.sign(f"{tree}/a")
    fs.invalidate_cache()
