"""A rank's part of a step, from the moment its memory is there until it is sealed."""

from __future__ import annotations

import contextlib
import logging
import mmap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moraine import _agent, _arrays, errors

if TYPE_CHECKING:
    from moraine.checkpoint import Run

ALIGN = 64
_SEAL_PATIENCE = 10.0
"""How long a seal waits for the next agent, if the one that it was sent to has gone, in seconds."""
_REDIAL = 0.2
"""The pause before a request is made to the next agent, in seconds."""

log = logging.getLogger("moraine")


def aligned(n: int) -> int:
    """Return the next place at which a tensor may begin."""
    return (n + ALIGN - 1) // ALIGN * ALIGN


class Part:
    """A part that is being filled. One thread may use it at a time.

    Its connection carries no other part meanwhile: the end of the connection aborts the step.
    """

    def __init__(self, run: Run, conn: _agent.Connection, step: int, slot: mmap.mmap) -> None:
        self.step = step
        self.mem = memoryview(slot)
        self._run, self._conn = run, conn
        self._end = 0
        self._tensors: list[dict[str, Any]] = []
        self._blobs: list[dict[str, Any]] = []

    @property
    def room(self) -> int:
        """How many bytes can still be placed."""
        return len(self.mem) - self._end

    def place(self, size: int, packed: bool = False) -> int:
        """Take `size` bytes of the memory, and what is left to the next aligned place unless `packed`. Return where
        they begin.
        """
        at = self._end
        if size > len(self.mem) - at:
            raise errors.TooLarge(f"step {self.step}: {size} bytes more than the {len(self.mem)} that were asked for")
        self._end = at + size if packed else min(aligned(at + size), len(self.mem))
        return at

    def add_tensor(self, name: str, value: Any, whole: tuple[list[int], list[int]] | None = None, at: int | None = None) -> None:
        """Copy an array or tensor into the part, unless it is there already: `at` a place.

        `whole` is the shape of the larger tensor of which it is a slice, and where it begins there.
        """
        dtype, shape, size = _arrays.describe(name, value)
        if at is None:
            at = self.place(size)
            with self.mem[at : at + size] as dst:
                _arrays.copy_into(dst, value)
        self.describe(name, dtype, shape, at, size, whole)

    def describe(self, name: str, dtype: str, shape: list[int], at: int, size: int, whole: tuple[list[int], list[int]] | None) -> None:
        """Add a tensor whose bytes are, or will be, at a place."""
        entry = {"name": name, "dtype": dtype, "shape": shape, "at": at, "bytes": size}
        if whole:
            entry |= {"global": whole[0], "offset": whole[1]}
        self._tensors.append(entry)

    def add_blob(self, name: str, data: bytes | memoryview, packed: bool = False) -> None:
        """Copy bytes that are no tensor into the part. See `place`."""
        at = self.place(len(data), packed)
        self.mem[at : at + len(data)] = data
        self._blobs.append({"name": name, "at": at, "bytes": len(data)})

    def seal(self) -> Save:
        """Declare the part complete. If the agent goes before it answers, the next one knows whether it has it."""
        save = Save(self._run, self.step)
        try:
            self._conn.request("seal", step=self.step, tensors=self._tensors, blobs=self._blobs)
        except errors.Unavailable:
            if not self._conn.closed or not save._is_local():
                raise
        return save

    def abort(self, reason: object) -> None:
        """End the step for all ranks. The end of the connection does that as well."""
        if not self._conn.closed:
            with contextlib.suppress(errors.MoraineError):
                self._conn.request("abort", step=self.step, reason=f"rank {self._run.rank}: {reason}")


@dataclass(frozen=True)
class Progress:
    """How far a part is: bytes of its files, with their headers."""

    state: str
    """"local": the agent writes it; "committed", or "failed"."""
    written: int
    """How many bytes the cluster has been given."""
    total: int
    """How many there are, as far as known: 0 before the agent begins to write."""


class Save:
    """A part that is sealed: it survives this process."""

    def __init__(self, run: Run, step: int) -> None:
        self._run, self.step = run, step

    def wait(self, level: str = "nvme", timeout: float | None = None) -> str:
        """Wait until the step is committed at `level` ("memory", "nvme" or "object"), or until this part is
        "local" or a "part" of the cluster. Return the level. Raises Aborted if the step never will be,
        and Timeout after `timeout` seconds.

        The wait survives the agent: while none answers, it tries again. An agent that has forgotten the part
        asks the cluster for the step.
        """
        return self._ask("wait", timeout, level=level)["level"]

    def progress(self, timeout: float = 10.0) -> Progress:
        """Return how far the part is. While no agent answers, it tries again for `timeout` seconds, and then
        raises Timeout. Raises NotFound if neither the agent nor the cluster has the part.
        """
        reply = self._ask("progress", timeout)
        return Progress(reply["state"], reply["written"], reply["bytes"])

    def _ask(self, op: str, timeout: float | None, **fields: Any) -> dict[str, Any]:
        """Make a request about this part, on a connection of its own: any thread may. Make it again at the next agent."""
        if timeout is not None:
            _agent.millis("timeout", timeout)  # it refuses what is none
        until = None if timeout is None else time.monotonic() + timeout
        left, warned = timeout, False
        while True:
            conn = None
            try:
                conn = _agent.Connection(self._run._socket)
                if op == "wait" and left is not None:
                    fields["timeout_ms"] = _agent.millis("timeout", left)
                return conn.request(op, run=self._run.path, rank=self._run.rank, attempt=self._run.attempt, step=self.step, **fields)
            except errors.Unavailable as err:
                if conn is not None and not conn.closed:
                    raise  # the agent has answered: the cluster is unavailable
                if until is not None and time.monotonic() + _REDIAL >= until:
                    raise errors.Timeout(f"step {self.step} of {self._run.path}: no agent answered for {timeout:g} s: {err}") from err
                if not warned:
                    log.warning("%s: step %d: the request is made again until an agent answers: %s", self._run.path, self.step, err)
                warned = True
                time.sleep(_REDIAL)
                left = None if until is None else max(until - time.monotonic(), 0)
            finally:
                if conn is not None:
                    conn.close()

    def _is_local(self) -> bool:
        """Report whether an agent has the sealed part. Ask for a while if none answers."""
        try:
            self.wait("local", _SEAL_PATIENCE)
        except errors.MoraineError:
            return False
        return True
