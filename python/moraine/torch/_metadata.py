"""What a rank keeps of DCP's metadata, in two blobs of its part.

Blob `dcp-metadata` describes the tensors and the objects that the rank writes. Blob `dcp-bytes` has
the bytes of the objects. The metadata of a step is the union of those of its ranks, so no rank needs
to know what the others wrote, and each blob stays small. Both load without the execution of code:
`torch.load` with `weights_only`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItem

from moraine import errors

METADATA, BYTES = "dcp-metadata", "dcp-bytes"
_VERSION = 1
_FORMATS = {str(f): f for f in (torch.contiguous_format, torch.channels_last, torch.preserve_format)}
# The names of safetensors. An older torch lacks some of these types.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@dataclass
class RankMetadata:
    """The metadata of one rank."""

    tensors: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """By name: dtype, global shape, requires_grad, memory format, pin_memory."""
    objects: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By name: where the object begins in `dcp-bytes`, and its length."""
    mapping: Any = None
    """How the planner of the rank flattened its state."""
    planner_data: Any = None
    """The planner_data of the whole step, if the mappings of the ranks do not give it."""

    def add(self, item: WriteItem) -> None:
        """Add a tensor, or a slice of one."""
        assert item.tensor_data is not None
        p = item.tensor_data.properties
        if p.layout != torch.strided:
            raise errors.InvalidArgument(f"{item.index.fqn}: a tensor of layout {p.layout} cannot be saved, only dense ones")
        self.tensors[item.index.fqn] = (
            p.dtype, tuple(item.tensor_data.size), p.requires_grad, str(p.memory_format), p.pin_memory,
        )

    def encode(self) -> bytes:
        """Return the bytes of `dcp-metadata`."""
        out = io.BytesIO()
        torch.save({"version": _VERSION, **vars(self)}, out)
        return out.getvalue()


def decode(data: bytes | memoryview) -> RankMetadata:
    """Read `dcp-metadata`. Types that a planner added must be in torch.serialization.add_safe_globals."""
    fields = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if fields.pop("version") != _VERSION:
        raise errors.InvalidArgument("the step was saved by a newer version of this package: upgrade it")
    return RankMetadata(**fields)


def merge(ranks: Iterable[RankMetadata]) -> Metadata:
    """Return the metadata of a step: each tensor as one chunk, since the agent cuts it in any way."""
    state: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    mapping: dict[str, Any] = {}
    planner_data = None
    for rank in ranks:
        for name, tensor in rank.tensors.items():
            state.setdefault(name, _tensor(*tensor))
        for name in rank.objects:
            state.setdefault(name, BytesStorageMetadata())
        if isinstance(rank.mapping, Mapping):
            mapping = {**rank.mapping, **mapping}
        if planner_data is None:
            planner_data = rank.planner_data
    return Metadata(state_dict_metadata=state, planner_data=mapping if planner_data is None else planner_data)


def of_tensors(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Metadata:
    """Return the metadata of a step that was saved without DCP: of its tensors."""
    for name, (dtype, _) in tensors.items():
        if not hasattr(torch, _DTYPES[dtype]):
            raise errors.InvalidArgument(f"{name}: this PyTorch has no type {_DTYPES[dtype]}")
    return Metadata(
        state_dict_metadata={
            name: _tensor(getattr(torch, _DTYPES[dtype]), shape) for name, (dtype, shape) in tensors.items()
        }
    )


def _tensor(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    requires_grad: bool = False,
    memory_format: str = str(torch.contiguous_format),
    pin_memory: bool = False,
) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(
            dtype=dtype, requires_grad=requires_grad, memory_format=_FORMATS[memory_format], pin_memory=pin_memory
        ),
        size=torch.Size(shape),
        chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=torch.Size(shape))],
    )
