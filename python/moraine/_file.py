"""Open files of moraine.fsspec."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile

from moraine import _agent, errors

if TYPE_CHECKING:
    from moraine.fsspec import MoraineFileSystem

FETCH = 16 << 20
"""How many bytes one request reads at most, and so how much memory of the agent a file takes."""
_WRITE = 8 << 20
_ERRNO = {
    errors.NotFound: errno.ENOENT,
    errors.Exists: errno.EEXIST,
    errors.PermissionDenied: errno.EACCES,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.NotEmpty: errno.ENOTEMPTY,
    errors.Immutable: errno.EPERM,
    errors.ReadOnly: errno.EROFS,
    errors.NoSpace: errno.ENOSPC,
    errors.QuotaExceeded: errno.EDQUOT,
    errors.NameTooLong: errno.ENAMETOOLONG,
}


@contextlib.contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Raise the errors of files that Python has for these kinds: FileNotFoundError, and so on."""
    try:
        yield
    except tuple(_ERRNO) as err:
        raise OSError(_ERRNO[type(err)], str(err), path) from err


class Source:
    """A connection that reads one file at a time, and the memory of its last read.

    As long as the path stays the same, all bytes are of one version of the file.
    """

    def __init__(self, socket: str) -> None:
        self.conn = _agent.Connection(socket)
        self._slot, self._mem = "", None

    def read(self, path: str, start: int, size: int) -> tuple[memoryview, dict[str, Any]]:
        """Read a range, less at the end of the file. The memory is that of the read before."""
        with as_os_errors(path):
            reply, fds = self.conn.request_fds("fetch_file", path=path, offset=start, bytes=max(size, 1), reuse=True)
        try:
            if reply["slot"] != self._slot:
                self._mem = mmap.mmap(fds[0], 0, access=mmap.ACCESS_READ)
                self._slot = reply["slot"]
        finally:
            os.close(fds[0])
        return memoryview(self._mem)[: min(reply["bytes"], size)], reply

    def pieces(self, path: str, start: int, end: int | None) -> Iterator[tuple[memoryview, dict[str, Any]]]:
        """Read a range up to `end`, or to the end of the file, in pieces. The next piece overwrites the last one."""
        while end is None or start < end:
            want = FETCH if end is None else min(FETCH, end - start)
            mem, reply = self.read(path, start, want)
            yield mem, reply
            start += len(mem)
            if len(mem) < want:
                return


def reopen(
    fs: MoraineFileSystem, path: str, block_size: int, loc: int, size: int, version: str | None, cache_type: str
) -> MoraineFile:
    """Open a file of a pickle. If the file has changed since, reads raise Stale."""
    f = fs.open(path, block_size=block_size, size=size, version=version, cache_type=cache_type)
    f.seek(loc)
    return f


class MoraineFile(AbstractBufferedFile):
    """A file that is read, or written. One thread may use it at a time.

    All bytes that are read are of the version that the file had when it was opened; otherwise the read
    raises Stale. A file that is read may be pickled, and used in a child of fork.
    """

    def __init__(
        self, fs: MoraineFileSystem, path: str, mode: str = "rb", *args: Any, version: str | None = None, **kwargs: Any
    ) -> None:
        self._source: Source | None = None
        self._sink: _agent.Connection | None = None
        self._exclusive = mode == "xb"
        self._version = version
        super().__init__(fs, path, "wb" if mode == "xb" else mode, *args, **kwargs)
        if self.mode == "rb" and self._details is not None:
            if self.details["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, "a directory has no bytes: open a file in it", path)
            self._version = self._version or self.details["version"]

    def __exit__(self, kind: Any, *args: Any) -> None:
        """Close the file. After an exception, a file that is written does not come into being.

        `fsspec.open` does not pass exceptions on: use `MoraineFileSystem.open` where it matters.
        """
        if kind is not None and self.mode == "wb":
            self.discard()
            self.closed = True
            return
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode != "rb" or self.closed:
            raise TypeError(f"{self.path}: only a file that is open for reading can be pickled")
        return reopen, (self.fs, self.path, self.blocksize, self.loc, self.size, self._version, self.cache.name)

    def readinto(self, b: Any) -> int:
        """Read into a buffer. Many bytes at once come from the agent's memory by one copy, past the cache."""
        out = memoryview(b).cast("B")
        if len(out) < self.blocksize or not self.readable():
            return super().readinto(b)
        at = 0
        for mem in self._pieces(self.loc, min(self.loc + len(out), self.size)):
            out[at : at + len(mem)] = mem
            at += len(mem)
        self.loc += at
        return at

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        if self._source is None or self._source.conn.closed:  # also in a child of fork
            self._source = Source(self.fs.socket)
        for mem, reply in self._source.pieces(self.path, start, end):
            self._version = self._version or reply["version"]
            if reply["version"] != self._version:
                raise errors.Stale(f"{self.path} was changed after it was opened: open it again")
            yield mem

    def _fetch_range(self, start: int, end: int) -> bytes:
        return join(self._pieces(start, min(end, self.size)))

    def _initiate_upload(self) -> None:
        conn = _agent.Connection(self.fs.socket)
        with as_os_errors(self.path):
            reply, fds = conn.request_fds("create", path=self.path, bytes=_WRITE, exclusive=self._exclusive, parents=True)
        try:
            self._out = mmap.mmap(fds[0], reply["bytes"])
        finally:
            os.close(fds[0])
        self._sink = conn

    def _upload_chunk(self, final: bool = False) -> bool:
        if self._sink is None:
            raise errors.Aborted(f"{self.path} was given up after an error: write all of it again")
        try:
            with as_os_errors(self.path), self.buffer.getbuffer() as data:
                for at in range(0, len(data), len(self._out)):
                    piece = data[at : at + len(self._out)]
                    self._out[: len(piece)] = piece
                    self._sink.request("append", bytes=len(piece))
            if final and self.autocommit:
                self.commit()
        except BaseException:
            self.discard()
            raise
        return True

    def commit(self) -> None:
        """Give a file that was written its name. A file that was opened with autocommit does that at its close."""
        if self._sink is not None:
            with as_os_errors(self.path):
                self._sink.request("commit")
            self._release()

    def discard(self) -> None:
        """Give up a file that is not committed."""
        self._release()

    def _release(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._sink = None

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._source = None


def join(pieces: Iterator[memoryview]) -> bytes:
    """Return the bytes of pieces. They are copied once."""
    out = io.BytesIO()
    for mem in pieces:
        out.write(mem)
    return out.getvalue()
