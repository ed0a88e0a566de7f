"""The storage reader of torch.distributed.checkpoint."""

from __future__ import annotations

import io
import math
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from moraine import _arrays, errors
from moraine._part import aligned
from moraine._step import BATCH_BYTES, BATCH_SLICES
from moraine.checkpoint import Checkpoint, Run
from moraine.torch import _metadata


@dataclass(frozen=True)
class _Cut:
    """A part of what a read item names: where it begins there, and its shape."""

    item: ReadItem
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    size: int


class StorageReader(_StorageReader):
    """Reads a committed step of a run, into any sharding, on any number of ranks.

    Memory of the node comes first, then the cluster. A step that was saved without DCP can be read
    too: its tensors by their names.
    """

    def __init__(self, run: Run, step: int | None = None, batch_bytes: int = BATCH_BYTES, level: str | None = None) -> None:
        """Read `step`, or the checkpoint_id of the load; else the step from which the launch continues.

        The step must have reached `level`: see `Run.open`. `batch_bytes` bounds the memory of the agent that a load takes at once.
        """
        super().__init__()
        self.run, self.step, self.level = run, step, level
        self._batch_bytes = max(batch_bytes, 1)
        self._load_id = str(uuid.uuid4())
        self._opened: Checkpoint | None = None
        self._metadata: Metadata | None = None
        self._objects: dict[str, tuple[int, int, int]] = {}  # rank, place and length by name
        self._blobs: dict[int, bytes] = {}  # by rank

    @property
    def checkpoint_id(self) -> str | None:
        """The name of the step in logs; None while it is not known."""
        return None if self.step is None else f"moraine://{self.run.path}/step-{self.step}"

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The step that the last load has opened; None before. It says how many bytes came from the memory of the node."""
        return self._opened

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        """Report whether a checkpoint_id is the number of a step."""
        return str(checkpoint_id).isascii() and str(checkpoint_id).isdigit()

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """Begin a load."""
        if checkpoint_id is not None:
            if not self.validate_checkpoint_id(checkpoint_id):
                raise errors.InvalidArgument(f"checkpoint_id {checkpoint_id!r}: it is the number of the step")
            self.step = int(str(checkpoint_id))
        self._load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any) -> Metadata:
        """Open the step and return its metadata. Raises NotFound if there is none."""
        fix = self.step is None and not self.run._start["read_only"]
        self._opened = step = self.run.open(self.step, fix=fix, level=self.level)
        self.step, self._blobs, self._objects = step.step, {}, {}
        ranks = sorted(rank for rank, name in step.blobs if name == _metadata.METADATA)
        parts = [_metadata.decode(data) for data in step.read_blobs([(rank, _metadata.METADATA) for rank in ranks])]
        for rank, part in zip(ranks, parts, strict=True):
            for name, (at, size) in part.objects.items():
                self._objects.setdefault(name, (rank, at, size))
        metadata = _metadata.merge(parts) if parts else _metadata.of_tensors(step.tensors())
        metadata.storage_meta = StorageMeta(checkpoint_id=self.checkpoint_id, load_id=self._load_id)
        self._metadata = metadata
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Take the metadata."""
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan names, several tensors at once, within the bound of memory."""
        tensors = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._object(item.storage_index.fqn)))
            else:
                tensors.append(item)
        targets: dict[int, tuple[torch.Tensor, int]] = {}  # by item: the tensor, and elements that are missing
        total = sum(aligned(math.prod(item.lengths) * self._dtype(item).itemsize) for item in tensors)
        for batch in self._batches(tensors):
            self._read(batch, min(total, self._batch_bytes), planner, targets)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _step(self) -> Checkpoint:
        if self._opened is None:
            raise errors.InvalidArgument("read_metadata comes first")
        return self._opened

    def _object(self, name: str) -> bytes:
        if name not in self._objects:
            raise errors.NotFound(f"step {self.step} has no object {name!r}")
        rank, at, size = self._objects[name]
        if rank not in self._blobs:
            self._blobs[rank] = self._step().blob(_metadata.BYTES, rank)
        return self._blobs[rank][at : at + size]

    def _batches(self, items: list[ReadItem]) -> Iterator[list[_Cut]]:
        batch: list[_Cut] = []
        size = 0
        for item in items:
            lengths = tuple(item.lengths)
            for offset, shape, n in _arrays.cuts((0,) * len(lengths), lengths, self._dtype(item).itemsize, self._batch_bytes):
                cut = _Cut(item, offset, shape, n)
                if batch and (size + cut.size > self._batch_bytes or len(batch) == BATCH_SLICES):
                    yield batch
                    batch, size = [], 0
                batch.append(cut)
                size += aligned(cut.size)
        if batch:
            yield batch

    def _dtype(self, item: ReadItem) -> torch.dtype:
        assert self._metadata is not None
        stored = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(stored, TensorStorageMetadata)
        return stored.properties.dtype

    def _read(self, batch: list[_Cut], room: int, planner: LoadPlanner, targets: dict[int, tuple[torch.Tensor, int]]) -> None:
        request, size = [], 0
        for cut in batch:
            base = cut.item.storage_index.offset or (0,) * len(cut.shape)
            start = [b + s + o for b, s, o in zip(base, cut.item.storage_offsets, cut.offset, strict=True)]
            request.append({"name": cut.item.storage_index.fqn, "offset": start, "shape": list(cut.shape), "at": size, "bytes": cut.size})
            size = aligned(size + cut.size)
        mem = self._step()._fetch(size, room=room, slices=request)
        for cut, place in zip(batch, request, strict=True):
            target, missing = targets.pop(id(cut.item), None) or (
                planner.resolve_tensor(cut.item).detach(), math.prod(cut.item.lengths)
            )
            if tuple(target.shape) != tuple(cut.item.lengths):
                raise errors.InvalidArgument(
                    f"{place['name']}: the planner gives a tensor of {tuple(target.shape)} for {tuple(cut.item.lengths)}"
                )
            count = math.prod(cut.shape)
            if count:
                value = torch.frombuffer(mem, dtype=self._dtype(cut.item), count=count, offset=place["at"]).view(cut.shape)
                target[tuple(slice(o, o + n) for o, n in zip(cut.offset, cut.shape, strict=True))].copy_(value)
            if missing > count:
                targets[id(cut.item)] = (target, missing - count)
            else:
                planner.commit_tensor(cut.item, target)
