"""Files of the cluster as an fsspec filesystem, through the agent of the node.

    fsspec.open("moraine:///data/train.parquet")     # MORAINE_AGENT, or the usual socket
    pandas.read_parquet("moraine:///data/train.parquet")

Bytes come in memory that the agent shares. `MoraineFileSystem.view` gives that memory itself, without
a copy. Programs do with files what the certificate of the agent allows.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

try:
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
except ImportError as err:
    raise ImportError("moraine.fsspec needs fsspec: pip install fsspec") from err

from moraine import _agent, errors

__all__ = ["MoraineFile", "MoraineFileSystem"]

_PAGE = 1000
_BLOCK = 4 << 20
_WRITE = 8 << 20
_ERRNO = {
    errors.NotFound: errno.ENOENT,
    errors.Exists: errno.EEXIST,
    errors.PermissionDenied: errno.EACCES,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.Immutable: errno.EPERM,
}


@contextlib.contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """Raise the errors of files that Python has for these kinds: FileNotFoundError, and so on."""
    try:
        yield
    except tuple(_ERRNO) as err:
        raise OSError(_ERRNO[type(err)], str(err), path) from err


class _View(mmap.mmap):
    """Memory of the agent that can only be read. It counts there until the last view of it is gone."""

    conn: _agent.Connection


class _Source:
    """A connection that reads one file at a time, and the memory of its last read."""

    def __init__(self, socket: str) -> None:
        self.conn = _agent.Connection(socket)
        self._slot, self._mem = "", None

    def read(self, path: str, start: int, size: int) -> tuple[memoryview, dict[str, Any]]:
        """Read a range, less at the end of the file. The memory is that of the read before."""
        reply, fds = self.conn.request_fds("fetch_file", path=path, offset=start, bytes=max(size, 1), reuse=True)
        try:
            if reply["slot"] != self._slot:
                self._mem = mmap.mmap(fds[0], 0, access=mmap.ACCESS_READ)
                self._slot = reply["slot"]
        finally:
            os.close(fds[0])
        return memoryview(self._mem)[: min(reply["bytes"], size)], reply


class MoraineFileSystem(AbstractFileSystem):
    """Files of the cluster. Threads may share it.

    Directories come into being with the files in them. A file that is written is visible whole, at
    its close, or not at all.
    """

    protocol = "moraine"
    root_marker = "/"

    def __init__(self, agent: str | None = None, **kwargs: Any) -> None:
        """Use the agent at the socket `agent`: by default MORAINE_AGENT, or the usual one."""
        super().__init__(**kwargs)
        self.socket = agent or os.environ.get("MORAINE_AGENT") or _agent.DEFAULT_SOCKET
        self._local = threading.local()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = os.fspath(path)
        for head in ("moraine://", "moraine::"):
            if path.startswith(head):
                path = path[len(head) :]
                if path and not path.startswith("/"):
                    raise ValueError(f"{head}{path}: write {head}/{path}: the agent knows the cluster")
        return "/" + path.strip("/")

    def _request(self, op: str, path: str, **fields: Any) -> dict[str, Any]:
        conn: _agent.Connection | None = getattr(self._local, "conn", None)
        if conn is None or conn.closed:  # also in a child of fork
            conn = self._local.conn = _agent.Connection(self.socket)
        with _as_os_errors(path):
            return conn.request(op, path=path, **fields)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe a file or directory: name, size, type, mtime and version, which changes with the content."""
        path = self._strip_protocol(path)
        return _info(path, self._request("stat", path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a directory, or a file alone."""
        path = self._strip_protocol(path)
        info = self.info(path)
        found = [info]
        if info["type"] == "directory":
            found, after = [], ""
            while page := self._request("list", path, after=after, limit=_PAGE)["entries"]:
                found += [_info(f"{path.rstrip('/')}/{e['name']}", e) for e in page]
                after = page[-1]["name"]
        return found if detail else [f["name"] for f in found]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Report whether a file or directory exists. An agent that does not answer is an error."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def modified(self, path: str) -> datetime:
        """Return when a file was changed last."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path: str) -> str:
        """Return what changes with the content of a file."""
        return self.info(path)["version"]

    def checksum(self, path: str) -> int:
        """Return a number that changes with the content of a file."""
        return hash(self.ukey(path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Read a range of a file."""
        with self.view(path, start, end) as view:
            return bytes(view)

    def view(self, path: str, start: int | None = None, end: int | None = None) -> memoryview:
        """Read a range of a file into memory of the agent, and return that memory.

        It can only be read, and takes memory of the agent's arenas until the last view of it is gone.
        """
        path = self._strip_protocol(path)
        if start is None or end is None or start < 0 or end < 0:
            size = self.info(path)["size"]
            start, end, _ = slice(start, end).indices(size)
        if end <= start:
            self.info(path)
            return memoryview(b"")
        conn = _agent.Connection(self.socket)
        with _as_os_errors(path):
            reply, fds = conn.request_fds("fetch_file", path=path, offset=start, bytes=end - start)
        try:
            view = _View(fds[0], 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fds[0])
        view.conn = conn
        return memoryview(view)[: reply["bytes"]]

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MoraineFile:
        if mode not in ("rb", "wb", "xb"):
            raise NotImplementedError(f"mode {mode!r}: a file is read (rb), or written whole (wb, xb)")
        with _as_os_errors(path):
            return MoraineFile(
                self, path, mode, block_size or _BLOCK, autocommit=autocommit, cache_options=cache_options, **kwargs
            )


class MoraineFile(AbstractBufferedFile):
    """A file that is read, or written. One thread may use it at a time."""

    def __init__(self, fs: MoraineFileSystem, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> None:
        self._source: _Source | None = None
        self._sink: _agent.Connection | None = None
        self._exclusive = mode == "xb"
        super().__init__(fs, path, "wb" if mode == "xb" else mode, *args, **kwargs)

    def __exit__(self, kind: Any, *args: Any) -> None:
        """Close the file. After an exception, a file that is written does not come into being.

        `fsspec.open` does not pass exceptions on: use `MoraineFileSystem.open` where it matters.
        """
        if kind is not None and self.mode == "wb":
            self.discard()
            self.closed = True
            return
        self.close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._source is None or self._source.conn.closed:  # also in a child of fork
            self._source = _Source(self.fs.socket)
        with _as_os_errors(self.path):
            mem, reply = self._source.read(self.path, start, end - start)
        if reply["version"] != self.details["version"]:
            raise errors.Stale(f"{self.path} was changed after it was opened: open it again")
        return bytes(mem)

    def _initiate_upload(self) -> None:
        conn = _agent.Connection(self.fs.socket)
        with _as_os_errors(self.path):
            reply, fds = conn.request_fds("create", path=self.path, bytes=_WRITE, exclusive=self._exclusive, parents=True)
        try:
            self._out = mmap.mmap(fds[0], reply["bytes"])
        finally:
            os.close(fds[0])
        self._sink = conn

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._sink is not None
        data = self.buffer.getbuffer()
        with _as_os_errors(self.path):
            for at in range(0, len(data), len(self._out)):
                piece = data[at : at + len(self._out)]
                self._out[: len(piece)] = piece
                self._sink.request("append", bytes=len(piece))
            if final and self.autocommit:
                self.commit()
        return True

    def commit(self) -> None:
        """Give a file that was written its name. A file that was opened with autocommit does that at its close."""
        if self._sink is not None:
            with _as_os_errors(self.path):
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


def _info(path: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": path, "size": entry["bytes"], "type": entry["type"], "mtime": entry["modified_ns"] / 1e9,
        "version": entry["version"],
    }
