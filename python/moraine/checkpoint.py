"""Save and restore checkpoints.

A save copies the tensors into memory that the agent of the node owns, once, and returns. From then
on the step survives this process: the agent writes it to the cluster. A restore reads from the
memory of the node where it can, else from the cluster, and only what is asked for.

    run = checkpoint.Run("/runs/llama", rank=rank, world=world)
    state = run.restore()                      # None if there is no checkpoint yet
    save = run.save_async(state, step=100)     # the trainer goes on
    save.wait("nvme")                          # where it matters
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moraine import _agent, _arrays, errors
from moraine._launch import Launch, launch_from_env
from moraine._part import Part, Save, aligned

__all__ = ["Checkpoint", "Launch", "Run", "Save", "Slice", "launch_from_env"]

_PAGE = 1000
_SLOTS = 4
"""How many slots stay mapped: of the last good part, the one that is written, the next, and one more."""


@dataclass(frozen=True)
class Slice:
    """One rank's slice of a larger tensor: where it begins in it, and the shape of all of it."""

    value: Any
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Run:
    """A training run, as one rank of one launch. One thread may use it at a time."""

    def __init__(
        self,
        path: str,
        rank: int = 0,
        world: int = 1,
        launch: Launch | None = None,
        takeover: bool = False,
        read_only: bool = False,
        agent: str | None = None,
    ) -> None:
        """Open the run whose directory is `path`.

        `launch` is found in the environment if it is not given. `agent` is the agent's socket:
        MORAINE_AGENT, or the usual one. Raises Busy while another launch works on the run, unless
        `takeover` is set, and Fenced if a later launch has overtaken this one.
        """
        self.path, self.rank, self.world = path, rank, world
        self._socket = agent or os.environ.get("MORAINE_AGENT") or _agent.DEFAULT_SOCKET
        start = Launch("") if read_only else launch or launch_from_env()
        self._start = {
            "run": path, "rank": rank, "world": world, "launch": start.name, "job": start.job,
            "restart": start.restart, "takeover": takeover, "read_only": read_only,
        }
        self._slots: dict[str, mmap.mmap] = {}
        self._opened: Checkpoint | None = None
        self._closed = False
        self._conn, self.attempt = self._connect()

    def _connect(self) -> tuple[_agent.Connection, int]:
        """Connect to the agent and open the run. Return the connection and the number of the attempt."""
        conn = _agent.Connection(self._socket)
        try:
            return conn, conn.request("open", **self._start)["attempt"]
        except BaseException:
            conn.close()
            raise

    def _request_fds(self, op: str, **fields: Any) -> tuple[dict[str, Any], list[int]]:
        """Make a request. If the agent was restarted since the last one, make it at the next agent."""
        try:
            return self._conn.request_fds(op, **fields)
        except errors.Unavailable:
            if self._closed or not self._conn.closed:
                raise
        conn, attempt = self._connect()
        self._check_attempt(conn, attempt)
        self._conn, self._opened = conn, None
        return self._conn.request_fds(op, **fields)

    def close(self) -> None:
        """Close the run. The agent writes on what is sealed."""
        self._closed, self._opened = True, None
        self._conn.close()
        self._slots.clear()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save_async(
        self,
        state: Mapping[str, Any],
        step: int,
        blobs: Mapping[str, bytes] | None = None,
        seal_timeout: float = 600.0,
        wait: bool = True,
    ) -> Save:
        """Save this rank's part of a step.

        `state` has numpy arrays, torch tensors, or a Slice of either, by name. `blobs` are bytes
        that are no tensors. The values may change as soon as the call returns: the part is then at
        level local. If no rank has sealed its part for `seal_timeout` seconds the step is aborted.
        Without `wait` it raises Busy while earlier saves use all of the node's memory.
        """
        blobs = blobs or {}
        size = 0
        for value in state.values():
            size = aligned(size + _arrays.describe(value.value if isinstance(value, Slice) else value)[2])
        for data in blobs.values():
            size = aligned(size + len(data))
        part = self._begin(step, size, seal_timeout, wait)
        try:
            for name, value in state.items():
                if isinstance(value, Slice):
                    part.add_tensor(name, value.value, (list(value.shape), list(value.offset)))
                else:
                    part.add_tensor(name, value)
            for name, data in blobs.items():
                part.add_blob(name, data)
            return part.seal()
        except BaseException as err:
            part.abort(err)
            raise

    def _begin(self, step: int, size: int, seal_timeout: float, wait: bool, apart: bool = False) -> Part:
        """Get memory of `size` bytes for a part: with `apart` on a connection of its own."""
        fields = {"step": step, "bytes": max(size, 1), "reserve": size, "seal_timeout_ms": int(seal_timeout * 1000), "no_wait": not wait}
        if apart:
            conn, attempt = self._connect()
            self._check_attempt(conn, attempt)
            reply, fds = conn.request_fds("begin", **fields)
        else:
            reply, fds = self._request_fds("begin", **fields)
            conn = self._conn
        try:
            return Part(self, conn, step, self._map(reply["slot"], fds[0], reply["bytes"]))
        finally:
            os.close(fds[0])

    def _check_attempt(self, conn: _agent.Connection, attempt: int) -> None:
        if attempt != self.attempt:
            conn.close()
            raise errors.Fenced(f"attempt {attempt} has taken over from attempt {self.attempt}")

    def _map(self, slot: str, fd: int, size: int) -> mmap.mmap:
        """Map a slot, or find that it is mapped: the page tables of the last save are still there.

        Memory of a slot that the agent has given back stays until its mapping goes.
        """
        mem = self._slots.pop(slot, None) or mmap.mmap(fd, size)
        self._slots[slot] = mem
        while len(self._slots) > _SLOTS:
            del self._slots[next(iter(self._slots))]
        return mem

    def open(self, step: int | None = None, fix: bool = False) -> Checkpoint:
        """Open a committed step: the latest, or `step`. Raises NotFound if there is none.

        With `fix` all ranks of the launch get the same one. It stays open until the next `open`, or
        until the run is closed, and cannot be removed as long.
        """
        self._opened = None
        reply, _ = self._request_fds("resolve", step=step, exact=step is not None, fix=fix)
        self._opened = Checkpoint(self, reply)
        return self._opened

    def restore(self, step: int | None = None, fix: bool = True) -> Checkpoint | None:
        """Open the step from which this launch continues; None if the run has no checkpoint yet."""
        try:
            return self.open(step, fix and step is None)
        except errors.NotFound:
            if step is not None:
                raise
            return None


class Checkpoint:
    """A committed step that is open. It is usable until its run opens another, or is closed."""

    def __init__(self, run: Run, reply: Mapping[str, Any]) -> None:
        self._run = run
        self.step: int = reply["step"]
        self.attempt: int = reply["attempt"]
        self.world: int = reply["world"]
        self.level: str = reply["level"]
        self.path: str = reply["path"]
        self.blobs: dict[tuple[int, str], int] = {(b["rank"], b["name"]): b["bytes"] for b in reply.get("blobs", [])}
        """The length of each blob, by rank and name."""
        self.from_node = 0
        """How many bytes came from the memory of this node so far."""

    def _conn(self) -> _agent.Connection:
        """Return the run's connection, on which this step must be the open one."""
        if self._run._opened is not self:
            raise errors.InvalidArgument(f"step {self.step} is no longer open: its run has opened another, or was closed")
        return self._run._conn

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype (as safetensors names it) and the shape of each tensor."""
        out: dict[str, tuple[str, tuple[int, ...]]] = {}
        after = ""
        while page := self._conn().request("tensors", after=after, limit=_PAGE)["tensors"]:
            out.update({t["name"]: (t["dtype"], tuple(t["shape"])) for t in page})
            after = page[-1]["name"]
        return out

    def read(
        self,
        names: list[str] | None = None,
        slices: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    ) -> dict[str, np.ndarray]:
        """Read tensors: all, those named, or slices: (offset, shape) by name.

        The arrays are over shared memory that nobody else has: they may be changed, and their
        memory is free when the last of them is gone.
        """
        known = self.tensors()
        wanted = dict(slices or {})
        for name in names if names is not None else ([] if slices else list(known)):
            wanted[name] = ((0,) * len(known[name][1]), known[name][1]) if name in known else ((), ())
        request, size = [], 0
        for name, (offset, shape) in wanted.items():
            if name not in known:
                raise errors.NotFound(f"step {self.step} has no tensor {name!r}")
            count = _arrays.size_of(known[name][0])
            for n in shape:
                count *= n
            request.append({"name": name, "offset": list(offset), "shape": list(shape), "at": size, "bytes": count})
            size = aligned(size + count)
        if not request:
            return {}
        mem = self._fetch(size, slices=request)
        return {
            r["name"]: _arrays.from_memory(mem[r["at"] : r["at"] + r["bytes"]], known[r["name"]][0], r["shape"])
            for r in request
        }

    def blob(self, name: str, rank: int | None = None) -> bytes:
        """Read a blob of a rank: by default of this one."""
        return self.read_blobs([(self._run.rank if rank is None else rank, name)])[0]

    def read_blobs(self, names: list[tuple[int, str]]) -> list[bytes]:
        """Read blobs, each by its rank and name."""
        request, size = [], 0
        for rank, name in names:
            if (rank, name) not in self.blobs:
                raise errors.NotFound(f"step {self.step} has no blob {name!r} of rank {rank}")
            request.append({"rank": rank, "name": name, "at": size, "bytes": self.blobs[rank, name]})
            size = aligned(size + self.blobs[rank, name])
        if not request:
            return []
        mem = self._fetch(size, blobs=request)
        return [bytes(mem[r["at"] : r["at"] + r["bytes"]]) for r in request]

    def _fetch(self, size: int, **fields: Any) -> memoryview:
        """Read into shared memory of `size` bytes."""
        reply, fds = self._conn().request_fds("fetch", bytes=max(size, 1), **fields)
        try:
            mem = memoryview(mmap.mmap(fds[0], max(size, 1)))
        finally:
            os.close(fds[0])
        self.from_node += reply["from_node"]
        return mem
