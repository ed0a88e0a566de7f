"""Files of the cluster as an fsspec filesystem, through the agent of the node.

    fsspec.open("moraine:///data/train.parquet")     # MORAINE_AGENT, or the usual socket
    pandas.read_parquet("moraine:///data/train.parquet")

Bytes come in memory that the agent shares. `MoraineFileSystem.view` gives that memory itself, without
a copy. Programs do with files what the certificate of the agent allows.
"""

from __future__ import annotations

import mmap
import os
import shutil
import threading
from datetime import datetime, timezone
from typing import Any

try:
    from fsspec.spec import AbstractFileSystem
    from fsspec.utils import tokenize
except ImportError as err:
    raise ImportError("moraine.fsspec needs fsspec: pip install fsspec") from err

from moraine import _agent, errors
from moraine._file import MoraineFile, Source, as_os_errors, join

__all__ = ["MoraineFile", "MoraineFileSystem"]

_PAGE = 1000
_BLOCK = 4 << 20


class _View(mmap.mmap):
    """Memory of the agent that can only be read. It counts there until the last view of it is gone."""

    conn: _agent.Connection


class MoraineFileSystem(AbstractFileSystem):
    """Files of the cluster. Threads and processes may share it, also in a pickle.

    `moraine:///data/a` is the file /data/a. So is `moraine://data/a`, since libraries drop a slash: the
    agent knows the cluster, and a URL names no hosts.

    A file that is written is visible whole, at its close, or not at all. Directories above it come
    into being with it. Copies share their bytes: `cp` moves none.
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
                hosts = path.split("/", 1)[0]
                if ":" in hosts or "," in hosts:
                    raise ValueError(f"{head}{path}: write {head}{path[len(hosts):] or '/'}: the agent knows the cluster")
        return "/" + "/".join(name for name in path.split("/") if name)

    def _request(self, op: str, name: str, /, **fields: Any) -> dict[str, Any]:
        conn: _agent.Connection | None = getattr(self._local, "conn", None)
        if conn is None or conn.closed:  # also in a child of fork
            conn = self._local.conn = _agent.Connection(self.socket)
        with as_os_errors(name):
            return conn.request(op, **fields)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe what is at a path, after links: name, size, type, mtime, and version, which changes with the content."""
        path = self._strip_protocol(path)
        return _info(path, self._request("stat", path, path=path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a directory, or a file alone. A link to a file is described as that file, with `islink`."""
        path = self._strip_protocol(path)
        info = self.info(path)
        found = [info]
        if info["type"] == "directory":
            found, after = [], ""
            while page := self._request("list", path, path=path, after=after, limit=_PAGE)["entries"]:
                found += [_info(f"{path.rstrip('/')}/{e['name']}", e) for e in page]
                after = page[-1]["name"]
        if not detail:
            return [f["name"] for f in found]
        return [self._followed(f) if f["type"] == "link" else f for f in found]

    def _followed(self, link: dict[str, Any]) -> dict[str, Any]:
        """Describe a link: as the file to which it leads. One to a directory, or to nothing, stays a link: walks end there."""
        link["islink"] = True
        try:
            info = self.info(link["name"])
        except OSError:
            return link
        return link if info["type"] == "directory" else {**info, "islink": True}

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any) -> Any:
        """List the files below a path, without links to directories."""
        found = super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **kwargs)
        found = {name: info for name, info in found.items() if info["type"] != "link"}
        return found if detail else list(found)

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

    def created(self, path: str) -> datetime:
        """Raise NotImplementedError: the cluster does not record when a file came into being."""
        self.info(path)
        raise NotImplementedError(f"{path}: the cluster does not record when a file was created; modified() says when it was changed last")

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Make an empty file. Without `truncate`, a file that is there stays as it is: its time cannot be set."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")
            return
        raise NotImplementedError(f"{path}: the time of a file cannot be set; write it again")

    def sign(self, path: str, expiration: int = 100, **kwargs: Any) -> str:
        """Raise NotImplementedError: no URL leads to a file without the certificate of an agent."""
        raise NotImplementedError(f"{path}: files of the cluster have no signed URLs; give an S3 endpoint's instead (moraine s3)")

    def ukey(self, path: str) -> str:
        """Return what changes with the content of a file."""
        return self.info(path)["version"]

    def checksum(self, path: str) -> int:
        """Return a number that changes with the content of a file. It is the same in all processes."""
        return int(tokenize(self.ukey(path)), 16)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a directory. Raises FileExistsError if the name is taken."""
        path = self._strip_protocol(path)
        self._request("mkdir", path, path=path, parents=create_parents, exclusive=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        path = self._strip_protocol(path)
        self._request("mkdir", path, path=path, parents=True, exclusive=not exist_ok)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        path = self._strip_protocol(path)
        if self.info(path)["type"] != "directory":
            raise NotADirectoryError(20, "not a directory: use rm", path)
        self._request("remove", path, path=path)

    def rm_file(self, path: str) -> None:
        """Remove a file, a link or an empty directory."""
        path = self._strip_protocol(path)
        self._request("remove", path, path=path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files. With `recursive` also directories, each with all below it, at once."""
        if maxdepth is not None:
            super().rm(path, recursive, maxdepth)
            return
        for p in self.expand_path(path):
            if not recursive and self.isdir(p):
                raise IsADirectoryError(21, "a directory is removed with recursive=True", p)
            self._request("remove", p, path=p, tree=recursive)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file: the copy shares its bytes. Of a directory, make one."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        try:
            self._request("clone", path1, **{"from": path1}, to=path2, parents=True)
        except IsADirectoryError:
            self.makedirs(path2, exist_ok=True)
        except errors.CrossTenant:
            with self.open(path1, "rb") as src, self.open(path2, "wb") as dst:
                shutil.copyfileobj(src, dst, _BLOCK)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move a file or a directory, at once. Patterns and lists are copied first, and then removed."""
        paths = (path1, path2)
        if maxdepth is not None or any(isinstance(p, list) or any(c in p for c in "*?[") for p in paths) or path1.endswith("/"):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        src, dst = self._strip_protocol(path1), self._strip_protocol(path2)
        if path2.endswith("/") or src != dst and self.isdir(dst):
            dst = f"{dst.rstrip('/')}/{src.rsplit('/', 1)[1]}"
        self.makedirs(self._parent(dst), exist_ok=True)
        self._request("rename", src, **{"from": src}, to=dst)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Read a range of a file."""
        return self._cat(Source(self.socket), path, start, end)

    def cat_ranges(
        self, paths: list[str], starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **kwargs: Any
    ) -> list[Any]:
        """Read ranges of files. Those of one file that follow each other are of one version."""
        source = Source(self.socket)
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        out: list[Any] = []
        for path, start, end in zip(paths, starts, ends, strict=True):
            try:
                out.append(self._cat(source, path, start, end))
            except Exception as err:
                if on_error != "return":
                    raise
                out.append(err)
        return out

    def _cat(self, source: Source, path: str, start: int | None, end: int | None) -> bytes:
        path, start, end = self._range(path, start, end)
        if end is not None and end <= start:
            return b""
        return join(mem for mem, _ in source.pieces(path, start, end))

    def _range(self, path: str, start: int | None, end: int | None) -> tuple[str, int, int | None]:
        """Return a range that does not count from the end. An `end` of None stays: it is the end of the file."""
        path = self._strip_protocol(path)
        if (start or 0) < 0 or (end or 0) < 0:
            start, end, _ = slice(start, end).indices(self.info(path)["size"])
        elif end is not None and end <= (start or 0):
            self.info(path)  # it must exist
        return path, start or 0, end

    def view(self, path: str, start: int | None = None, end: int | None = None) -> memoryview:
        """Read a range of a file into memory of the agent, and return that memory.

        It can only be read, and takes memory of the agent's arenas until the last view of it is gone.
        """
        path, start, end = self._range(path, start, end)
        if end is None:
            end = self.info(path)["size"]
        conn = _agent.Connection(self.socket)
        with as_os_errors(path):
            reply, fds = conn.request_fds("fetch_file", path=path, offset=start, bytes=max(end - start, 1))
        try:
            view = _View(fds[0], 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fds[0])
        view.conn = conn
        return memoryview(view)[: min(reply["bytes"], max(end - start, 0))]

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
            raise NotImplementedError(
                f"{path}: mode {mode!r}: a file is read (rb), or written whole (wb, xb). To add to it, write another file, or use a mount"
            )
        return MoraineFile(
            self, path, mode, block_size or _BLOCK, autocommit=autocommit, cache_options=cache_options, **kwargs
        )


def _info(path: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": path, "size": entry["bytes"], "type": entry["type"], "mtime": entry["modified_ns"] / 1e9,
        "version": entry["version"], "ETag": entry["version"],
    }
