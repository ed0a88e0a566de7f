"""A part whose arrays the caller fills in the memory of the agent, so that a save copies nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from moraine import _arrays, errors
from moraine._part import Part, Save, aligned

if TYPE_CHECKING:
    from moraine.checkpoint import Run


class Buffers(Mapping[str, np.ndarray]):
    """Arrays in the memory of the agent, by name: see `Run.allocate`. One thread may use it at a time.

    As a context manager it aborts the step if the block ends without `seal`. So does the end of the process.
    """

    def __init__(self, run: Run, step: int, shapes: Mapping[str, Any], slices: Mapping[str, Any], blob_bytes: int, **options: Any) -> None:
        described, size = {}, blob_bytes + 64
        for name, (shape, dtype) in shapes.items():
            described[name] = _arrays.describe_as(name, shape, dtype)
            size = aligned(size + described[name][2])
        for name in slices:
            if name not in described:
                raise errors.InvalidArgument(f"{name} is a slice of which no shape is given")
        self._part: Part = run._begin(step, size, apart=True, **options)
        self._memory: dict[str, memoryview] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._ended = ""
        try:
            for name, (dtype, shape, count) in described.items():
                at = self._part.place(count)
                self._memory[name] = self._part.mem[at : at + count]
                self._arrays[name] = _arrays.from_memory(self._memory[name], dtype, shape)
                offset, whole = slices.get(name, (None, None))
                entry = (list(whole), list(offset)) if whole is not None else None
                self._part.describe(name, dtype, shape, at, count, entry)
        except BaseException as err:
            self._part.abort(err)
            self._part._conn.close()
            raise

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def memory(self, name: str) -> memoryview:
        """Return the bytes of an array, for `torch.frombuffer` and others."""
        return self._memory[name]

    def seal(self, blobs: Mapping[str, bytes] | None = None) -> Save:
        """Declare the part complete. The arrays can then only be read, and soon have other content: do not use
        them again. Whoever writes to their memory all the same, through another view, ends the part.
        """
        if self._ended == "aborted":
            raise errors.Aborted(f"step {self._part.step} was aborted: allocate the next one")
        if self._ended:
            raise errors.InvalidArgument(f"step {self._part.step} is sealed already")
        for name, data in (blobs or {}).items():
            self._part.add_blob(name, data, packed=True)  # blob_bytes is the length of all
        for array in self._arrays.values():
            array.flags.writeable = False
        save = self._part.seal()
        self._end("sealed")
        return save

    def abort(self, reason: object = "given up by the trainer") -> None:
        """End the step for all ranks, unless it is sealed."""
        if not self._ended:
            self._part.abort(reason)
            self._end("aborted")

    def _end(self, how: str) -> None:
        self._ended = how
        self._part._conn.close()

    def __enter__(self) -> Buffers:
        return self

    def __exit__(self, kind: Any, err: Any, _: object) -> None:
        self.abort(err or "the block ended before its seal")
