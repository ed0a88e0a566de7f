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

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from moraine import _agent, _arrays, errors
from moraine._arrays import Slice
from moraine._buffers import Buffers
from moraine._failures import Failure, Failures
from moraine._launch import Launch, launch_from_env
from moraine._part import Part, Progress, Save, aligned
from moraine._step import Checkpoint
from moraine._values import MAX_STEP, MAX_WORLD, count, run_path

__all__ = ["Buffers", "Checkpoint", "Failure", "Launch", "Progress", "Run", "Save", "Slice", "launch_from_env"]

_LEVELS = ("memory", "nvme")
_BUSY = ("wait", "skip", "supersede")
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, which Python does not name: makes the page tables of a mapping before the copy, not during it."""
_SLOTS = 4
"""How many slots stay mapped: of the last good part, the one that is written, the next, and one more."""


class Run:
    """A training run, as one rank of one launch. One thread may use it at a time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        rank: int = 0,
        world: int = 1,
        launch: Launch | None = None,
        takeover: bool = False,
        read_only: bool = False,
        agent: str | os.PathLike[str] | None = None,
        on_failure: Callable[[Failure], None] | None = None,
        expected_bytes: int | None = None,
    ) -> None:
        """Open the run whose directory is `path`: /runs/llama, or moraine:///runs/llama.

        `launch` is found in the environment if it is not given. `agent` is the agent's socket:
        MORAINE_AGENT, or the usual one. Raises Busy while another launch works on the run, unless
        `takeover` is set, and Fenced if a later launch has overtaken this one.

        `expected_bytes` is how large a part of this rank will be: its tensors and blobs, rather too much than
        too little. The agent then makes the memory now, and the first save is as fast as the next. Without it
        the first saves wait for that.

        A save can fail after its part is sealed, while training goes on. The next save then succeeds
        all the same, and calls `on_failure` before it copies a byte; an exception from there ends that
        save, and aborts its step. Without `on_failure` the failure is a warning in the log "moraine".
        """
        self.path, self.world = run_path(path), count("world", world, MAX_WORLD, 1)
        self.rank = count("rank", rank, self.world - 1)
        self._failures = Failures(self.path, self.rank, on_failure)
        self._socket = os.fsdecode(agent) if agent else os.environ.get("MORAINE_AGENT") or _agent.DEFAULT_SOCKET
        start = Launch("") if read_only else launch or launch_from_env()
        self._start = {
            "run": self.path, "rank": self.rank, "world": self.world, "launch": start.name, "job": start.job,
            "restart": start.restart, "takeover": takeover, "read_only": read_only, "bytes": expected_bytes,
        }
        self._slots: dict[str, mmap.mmap] = {}
        _runs.add(self)
        self._opened: Checkpoint | None = None
        self._closed = False
        self._conn, self.attempt = self._connect()

    def _unmap(self) -> None:
        """Keep no memory of the agent mapped. What a part or an array still uses stays as long as that."""
        self._slots.clear()
        if self._opened:
            self._opened._scratch = None

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
        self._unmap()  # the next agent does not know these slots, and needs their pages
        conn, attempt = self._connect()
        self._check_attempt(conn, attempt)
        self._conn, self._opened = conn, None
        return self._conn.request_fds(op, **fields)

    def close(self) -> None:
        """Close the run. The agent writes on what is sealed."""
        self._closed, self._opened = True, None
        self._conn.close()
        self._slots.clear()

    @property
    def last_failure(self) -> Failure | None:
        """The save of this rank that failed last, as far as the agent had reported it at the last save; None if
        none has. A save that this rank ended itself, by an exception, is not one.
        """
        return self._failures.last

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
        level: str | None = None,
        busy: str = "wait",
    ) -> Save:
        """Save this rank's part of a step.

        `state` has numpy arrays, torch tensors, or a Slice of either, by name. `blobs` are bytes
        that are no tensors. The values may change as soon as the call returns: the part is then at
        level local. If no rank has sealed its part for `seal_timeout` seconds, a week at most, the step
        is aborted.

        `level` is where the cluster has the part when it accepts it: "nvme", or "memory", the memory of
        several hosts, and soon after nvme. None is "nvme", and "memory" for a step that stays there by the
        policy of the run. A wait for "nvme" brings such a step to the devices. `busy` says what happens while earlier saves use all of the
        node's memory: "wait"; "skip" raises Busy; "supersede" waits, and gives up older steps of this
        rank that nobody has begun to write.
        """
        blobs = blobs or {}
        size = 0
        for name, value in state.items():
            size = aligned(size + _arrays.describe(name, value.value if isinstance(value, Slice) else value)[2])
        for data in blobs.values():
            size = aligned(size + len(data))
        part = self._begin(step, size, seal_timeout, level, busy)
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

    def save(self, state: Mapping[str, Any], step: int, timeout: float | None = None, level: str = "nvme", **options: Any) -> Save:
        """Save this rank's part of a step, and wait until the step is committed at `level`.

        `options` are those of `save_async`. Raises Timeout after `timeout` seconds: the save goes on.
        """
        save = self.save_async(state, step, level=level, **options)
        save.wait(level, timeout)
        return save

    def allocate(
        self,
        step: int,
        shapes: Mapping[str, tuple[tuple[int, ...], Any]],
        slices: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
        blob_bytes: int = 0,
        seal_timeout: float = 600.0,
        level: str | None = None,
        busy: str = "wait",
    ) -> Buffers:
        """Begin this rank's part of a step with arrays in the memory of the agent: the caller fills them, and
        `Buffers.seal` saves them without a copy.

        `shapes` has the shape and the dtype of each array by name. Of one that is a slice, `slices` has the
        offset in the larger tensor and the shape of all of it. `blob_bytes` is the length of all blobs that
        `seal` will get. The other options are those of `save_async`. The content of the arrays is undefined.

            with run.allocate(100, {"w": ((4096, 4096), "float32")}) as part:
                numpy.matmul(a, b, out=part["w"])
                save = part.seal()

        Meanwhile the part takes memory of the agent's arenas. The run may save other steps.
        """
        return Buffers(self, step, shapes, slices or {}, blob_bytes, seal_timeout=seal_timeout, level=level, busy=busy)

    def _begin(self, step: int, size: int, seal_timeout: float, level: str | None, busy: str, apart: bool = False) -> Part:
        """Get memory of `size` bytes for a part: with `apart` on a connection of its own."""
        step = count("step", step, MAX_STEP)
        if level is not None and level not in _LEVELS:
            raise errors.InvalidArgument(f"level {level!r}: a part is accepted at {' or '.join(_LEVELS)}")
        if busy not in _BUSY:
            raise errors.InvalidArgument(f"busy={busy!r}: it is {', '.join(_BUSY)}")
        fields = {
            "step": step, "bytes": max(size, 1), "reserve": size, "level": level or "", "seal_timeout_ms": _agent.millis("seal_timeout", seal_timeout),
            "no_wait": busy == "skip", "supersede": busy == "supersede",
        }
        if self._opened:
            self._opened._scratch = None  # the agent takes the memory back; a mapping would keep its pages
        if apart:
            conn, attempt = self._connect()
            try:
                self._check_attempt(conn, attempt)
                reply, fds = conn.request_fds("begin", **fields)
            except BaseException:
                conn.close()
                raise
        else:
            reply, fds = self._request_fds("begin", **fields)
            conn = self._conn
        try:
            part = Part(self, conn, step, self._map(reply["slot"], fds[0], reply["bytes"]))
        except BaseException:
            conn.close()  # the step is begun there: the agent would refuse the next one
            raise
        finally:
            for fd in fds:
                os.close(fd)
        try:
            self._failures.note(reply.get("failed", []))
        except BaseException as err:
            part.abort(err)
            if apart:
                conn.close()
            raise
        return part

    def _check_attempt(self, conn: _agent.Connection, attempt: int) -> None:
        if attempt != self.attempt:
            conn.close()
            raise errors.Fenced(f"attempt {attempt} has taken over from attempt {self.attempt}")

    def _map(self, slot: str, fd: int, size: int) -> mmap.mmap:
        """Map a slot, or find that it is mapped: the page tables of the last save are still there.

        Memory of a slot that the agent has given back stays until its mapping goes.
        """
        mem = self._slots.pop(slot, None)
        if mem is None:
            mem = mmap.mmap(fd, size)
            with contextlib.suppress(OSError):  # a kernel before 5.14: the copy makes the page tables
                mem.madvise(_POPULATE_WRITE)
        self._slots[slot] = mem
        while len(self._slots) > _SLOTS:
            del self._slots[next(iter(self._slots))]
        return mem

    def open(
        self,
        step: int | None = None,
        fix: bool = False,
        level: str | None = None,
        tag: str | None = None,
        healthy: bool = False,
        before: Checkpoint | None = None,
        fallback: bool = False,
    ) -> Checkpoint:
        """Open a committed step: the latest, or `step`. Raises NotFound if there is none.

        It must have reached `level`: "memory", "nvme" or "object". None is "nvme", and "memory" for a `step`:
        one that stays in memory by the policy of the run is then found too. It must have the `tag`, and with
        `healthy` be marked healthy. With `before` it is the latest one before a step that was opened
        earlier, and turned out to be damaged. With `fallback` a step whose index cannot be read is
        skipped: see `Checkpoint.skipped`. Otherwise that raises Corrupt or Lost.

        With `fix` all ranks of the launch get the same one; not with `before` or `fallback`. It stays open
        until the next `open`, or until the run is closed, and cannot be removed as long.
        """
        self._opened = None
        if step is not None:
            step = count("step", step, MAX_STEP)
        if level is None:
            level = "nvme" if step is None else "memory"
        reply, _ = self._request_fds(
            "resolve", step=step, exact=step is not None, fix=fix, level=level, tag=tag, healthy=healthy, fallback=fallback,
            before={"attempt": before.attempt, "step": before.step} if before else None,
        )
        self._opened = Checkpoint(self, reply)
        return self._opened

    def restore(
        self,
        step: int | None = None,
        fix: bool = True,
        level: str | None = None,
        tag: str | None = None,
        healthy: bool = False,
        before: Checkpoint | None = None,
        fallback: bool = False,
    ) -> Checkpoint | None:
        """Open the step from which this launch continues; None if the run has no such checkpoint.

        All ranks get the same step. But with `before` or `fallback` each rank chooses for itself: let the
        ranks agree on the earliest, and open that one on all of them with `open(step, fix=True)`. See `open`.
        Raises Conflict once this launch has committed a step: for a start of the job, an earlier one had the same
        name. With `fix=False` it opens the newest step, also of this launch.
        """
        fix = fix and step is None and before is None and not fallback and not self._start["read_only"]
        try:
            return self.open(step, fix, level, tag, healthy, before, fallback)
        except errors.NotFound:
            if step is not None:
                raise
            return None


_runs: weakref.WeakSet[Run] = weakref.WeakSet()


def _unmap_in_child() -> None:
    """Unmap the slots in a child of fork. A worker of a DataLoader would keep their pages for as long as it lives."""
    for run in list(_runs):
        run._unmap()


os.register_at_fork(after_in_child=_unmap_in_child)
