"""The storage writer of torch.distributed.checkpoint."""

from __future__ import annotations

import io
import os
import uuid
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from moraine import errors
from moraine._part import Part, Save, aligned
from moraine.checkpoint import Run
from moraine.torch import _staging
from moraine.torch._metadata import BYTES, METADATA, RankMetadata

_SPARE = 64 << 10
"""Memory of a part beside its tensors and blobs: for the planner_data of the step, if it is unusual."""


class StorageWriter(_StorageWriter, AsyncStager):
    """Saves one step of a run. Make one for each save.

    It is a stager as well: `dcp.async_save` copies the tensors straight into the agent's memory, and
    returns. DCP's process-based saves cannot use it.
    """

    _synchronize_after_execute = False  # `stage` returns when the copy is there

    def __init__(
        self, run: Run, step: int | None = None, seal_timeout: float = 600.0, level: str | None = None, busy: str = "wait"
    ) -> None:
        """Save `step`, or the checkpoint_id of the save, which must be a number.

        For `seal_timeout`, `level` and `busy` see `Run.save_async`. The rank and the world of `run` must be
        those of the process group. Use the run in no other way during the save.
        """
        super().__init__()
        self.run, self.step = run, step
        self.saved: Save | None = None
        """The sealed part, to wait for a level; None before the end of the save."""
        self._seal_timeout, self._level, self._busy = seal_timeout, level, busy
        self._save_id = str(uuid.uuid4())
        self._part: Part | None = None
        self._filled = False  # the part has what a plan names: it is not just staged
        self._rank_metadata = RankMetadata()
        self._plans: list[SavePlan] | None = None
        self._collective = True

    def __getstate__(self) -> Any:
        raise errors.InvalidArgument("a save of another process cannot use this memory: leave async_checkpointer_type at THREAD")

    @property
    def checkpoint_id(self) -> str | None:
        """The name of the step in logs; None while it is not known."""
        return None if self.step is None else f"moraine://{self.run.path}/step-{self.step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        """Report whether a checkpoint_id is the number of a step."""
        return str(checkpoint_id).isascii() and str(checkpoint_id).isdigit()

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """Begin a save. One that is staged goes on, and its step is the same."""
        self._drop_failed()
        if checkpoint_id is not None:
            if not self.validate_checkpoint_id(checkpoint_id):
                raise errors.InvalidArgument(f"checkpoint_id {checkpoint_id!r}: it is the number of the step")
            if self._part and self.step != int(str(checkpoint_id)):
                raise errors.InvalidArgument(f"step {self.step} is staged: make a StorageWriter for step {checkpoint_id}")
            self.step = int(str(checkpoint_id))

    # As a stager.

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy a state dict into memory of the agent. The copy is usable until the part is sealed."""
        self._drop_failed()
        if self._part:
            raise errors.InvalidArgument(f"step {self.step} is staged already: make a StorageWriter for each save")
        size = _staging.size_of(state_dict)
        planner = DefaultSavePlanner()
        planner.set_up_planner(state_dict, is_coordinator=True)
        plan = planner.create_local_plan()
        metadata, objects = self._collect(plan, planner)
        part = self._begin(size + sum(aligned(len(b)) for b in (metadata.encode(), *objects)))
        try:
            staged = _staging.stage(state_dict, part)
        except BaseException as err:
            part.abort(err)
            raise
        self._part = part
        return staged

    def synchronize_staging(self) -> None:
        """Do nothing: `stage` returns when the copy is there."""

    def close(self) -> None:
        """End a save that is not sealed. Its step is aborted."""
        self._abort("the save was closed before its end")

    # As a writer, in the order of the calls.

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Check the step and the rank."""
        if self.step is None:
            raise errors.InvalidArgument("which step? StorageWriter(run, step=N), or checkpoint_id=N")
        rank = kwargs.get("rank")
        if rank is not None and rank != self.run.rank:
            raise errors.InvalidArgument(f"rank {rank} of the process group saves as rank {self.run.rank} of the run")
        self._drop_failed()
        self._collective = kwargs.get("use_collectives", True)
        self._plans, self.saved = None, None

    def storage_meta(self) -> StorageMeta:
        """Name the save."""
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save_id)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Check the number of ranks. Return the plans as they are. Only the coordinator is called."""
        if self._collective and len(plans) != self.run.world:
            raise errors.InvalidArgument(f"the process group has {len(plans)} ranks, the run {self.run.world}")
        self._plans = plans
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Copy what the plan names into the part, unless it is staged there. Seal the part.

        The coordinator seals in `finish`: the step is then not committed if a rank has failed.
        """
        try:
            results = self._fill(plan, planner)
            if self._plans is None:
                self._seal()
        except BaseException as err:
            self._abort(err)
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Seal the coordinator's part."""
        metadata.storage_meta = self.storage_meta()
        metadata.storage_data = {}
        try:
            if not self._is_union(metadata.planner_data):
                self._rank_metadata.planner_data = metadata.planner_data
            self._seal()
        except BaseException as err:
            self._abort(err)
            raise

    def _begin(self, size: int) -> Part:
        if self.step is None:
            raise errors.InvalidArgument("which step? StorageWriter(run, step=N)")
        return self.run._begin(self.step, size + _SPARE, self._seal_timeout, self._level, self._busy, apart=True)

    def _collect(self, plan: SavePlan, planner: SavePlanner) -> tuple[RankMetadata, list[memoryview]]:
        """Return the metadata of what a plan writes, and the bytes of its objects."""
        metadata, objects, at = RankMetadata(mapping=plan.planner_data), [], 0
        for item in plan.items:
            if item.type != WriteItemType.BYTE_IO:
                metadata.add(item)
                continue
            data = planner.resolve_data(item)
            assert isinstance(data, io.BytesIO)
            objects.append(data.getbuffer())
            metadata.objects[item.index.fqn] = (at, len(objects[-1]))
            at += len(objects[-1])
        return metadata, objects

    def _fill(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        self._rank_metadata, objects = self._collect(plan, planner)
        tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        if self._part is None:
            size = sum(aligned(_bytes(item)) for item in tensors) + aligned(sum(len(b) for b in objects))
            self._part = self._begin(size + aligned(len(self._rank_metadata.encode())))
        part, self._filled = self._part, True
        for item in tensors:
            self._add(part, item, planner)
        part.add_blob(BYTES, b"".join(objects))
        return [
            WriteResult(
                index=item.index,
                size_in_bytes=self._rank_metadata.objects[item.index.fqn][1] if item.type == WriteItemType.BYTE_IO else _bytes(item),
                storage_data=None,
            )
            for item in plan.items
        ]

    def _add(self, part: Part, item: WriteItem, planner: SavePlanner) -> None:
        assert item.tensor_data is not None
        shape, whole = list(item.tensor_data.chunk.sizes), list(item.tensor_data.size)
        if 0 in shape and 0 not in whole:
            return  # a rank without rows of a tensor
        tensor = planner.resolve_data(item)
        assert isinstance(tensor, torch.Tensor)
        tensor = tensor.detach()
        if list(tensor.shape) != shape or tensor.dtype != item.tensor_data.properties.dtype:
            raise errors.InvalidArgument(
                f"{item.index.fqn}: the planner gives {tensor.dtype} {list(tensor.shape)}, and planned"
                f" {item.tensor_data.properties.dtype} {shape}"
            )
        place = None if shape == whole else (whole, list(item.tensor_data.chunk.offsets))
        try:
            part.add_tensor(item.index.fqn, tensor, place, _staging.place_of(part, tensor))
        except errors.TooLarge as err:
            raise errors.TooLarge(
                f"{item.index.fqn}: the planner changes tensors after they are staged: use dcp.save, or another async_stager"
            ) from err

    def _is_union(self, planner_data: Any) -> bool:
        """Report whether the mappings of all ranks give the planner_data of the step."""
        if planner_data is None or not self._plans or not all(plan.usable for plan in self._plans):
            return planner_data is None or _is_mapping(planner_data)  # a planner that caches plans gives no mappings
        union: dict[str, Any] = {}
        for plan in self._plans:
            if not _is_mapping(plan.planner_data):
                return False
            union = {**plan.planner_data, **union}
        return union == planner_data

    def _seal(self) -> None:
        assert self._part is not None
        self._part.add_blob(METADATA, self._rank_metadata.encode())
        self.saved = self._part.seal()
        self._part, self._plans, self._filled = None, None, False

    def _drop_failed(self) -> None:
        """End a save that another rank made fail after this one had written its data."""
        if self._filled:
            self._abort("another rank failed")

    def _abort(self, reason: object) -> None:
        if self._part:
            self._part.abort(reason)
        self._part, self._plans, self._filled = None, None, False


def _is_mapping(planner_data: Any) -> bool:
    return isinstance(planner_data, dict) and all(isinstance(path, tuple) for path in planner_data.values())


def _bytes(item: WriteItem) -> int:
    """Return the bytes of the tensor that an item writes."""
    assert item.tensor_data is not None
    return item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
