"""A committed step that is open, and what is read from it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from moraine import _agent, _arrays, errors
from moraine._arrays import Slice
from moraine._failures import Failure
from moraine._part import aligned

if TYPE_CHECKING:
    from moraine.checkpoint import Run

_PAGE = 1000
BATCH_BYTES = 64 << 20
"""How many bytes a read into memory of the caller takes of the agent's memory at once."""
BATCH_SLICES = 10_000


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
        self.skipped: list[Failure] = [Failure.of(f) for f in reply.get("skipped", [])]
        """The later steps that could not be read, and why: see `fallback` of Run.open."""
        self._scratch: tuple[str, mmap.mmap] | None = None  # memory of the last fetch that nobody needs
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
        mem = self._fetch(size, keep=True, slices=request)
        return {
            r["name"]: _arrays.from_memory(mem[r["at"] : r["at"] + r["bytes"]], known[r["name"]][0], r["shape"])
            for r in request
        }

    def read_into(self, targets: Mapping[str, Any], batch_bytes: int = BATCH_BYTES) -> None:
        """Read tensors, by name, into numpy arrays or torch tensors of the caller.

        A Slice is read into its value. The step's tensors must have the same type and shape. It takes
        `batch_bytes` of the agent's memory at once, the same for all batches. An error leaves the targets
        half read.
        """
        known = self.tensors()
        pieces = []
        for name, target in targets.items():
            pieces += self._pieces(name, target, known.get(name), max(batch_bytes, 1))
        room = min(sum(aligned(p["bytes"]) for p, _, _ in pieces), batch_bytes)
        batch: list[Any] = []
        size = 0
        for piece in [*pieces, None]:
            if batch and (piece is None or size + piece[0]["bytes"] > batch_bytes or len(batch) == BATCH_SLICES):
                mem = self._fetch(size, room=room, slices=[request for request, _, _ in batch])
                for request, value, offset in batch:
                    src = mem[request["at"] : request["at"] + request["bytes"]]
                    _arrays.copy_out(value, offset, tuple(request["shape"]), src, known[request["name"]][0])
                batch, size = [], 0
            if piece:
                piece[0]["at"] = size
                batch.append(piece)
                size = aligned(size + piece[0]["bytes"])

    def _pieces(self, name: str, target: Any, known: Any, limit: int) -> Iterator[tuple[dict[str, Any], Any, tuple[int, ...]]]:
        """Cut a target into pieces of a batch at most: what to fetch, and its place in the array."""
        if known is None:
            raise errors.NotFound(f"step {self.step} has no tensor {name!r}")
        value = target.value if isinstance(target, Slice) else target
        dtype, shape, _ = _arrays.describe(name, value)
        whole = tuple(target.shape) if isinstance(target, Slice) else tuple(shape)
        if (dtype, whole) != known:
            raise errors.InvalidArgument(f"{name}: the step has {known[0]} of shape {known[1]}, the target is {dtype} of shape {whole}")
        base = target.offset if isinstance(target, Slice) else (0,) * len(shape)
        for offset, cut, size in _arrays.cuts((0,) * len(shape), tuple(shape), _arrays.size_of(dtype), limit):
            start = [b + o for b, o in zip(base, offset, strict=True)]
            yield {"name": name, "offset": start, "shape": list(cut), "at": 0, "bytes": size}, value, offset

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

    def _fetch(self, size: int, room: int = 0, keep: bool = False, **fields: Any) -> memoryview:
        """Read into shared memory of `size` bytes, and of `room` if that is more.

        Without `keep` the bytes are there until the next fetch, which then uses the same memory again.
        """
        reply, fds = self._conn().request_fds("fetch", bytes=max(size, room, 1), reuse=self._scratch is not None, **fields)
        try:
            if self._scratch and self._scratch[0] == reply["slot"]:
                mem = self._scratch[1]
            else:
                mem = mmap.mmap(fds[0], 0)
        finally:
            os.close(fds[0])
        self._scratch = None if keep else (reply["slot"], mem)
        self.from_node += reply["from_node"]
        return memoryview(mem)[:size]
