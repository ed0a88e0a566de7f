"""Copies of a state dict in the memory of a part."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from moraine import errors
from moraine._part import Part, aligned


def size_of(value: Any) -> int:
    """Return how many bytes `stage` takes for the tensors of a state dict."""
    if isinstance(value, dict):
        return sum(size_of(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return sum(size_of(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return 0
    tensor = _local(value)
    return aligned(tensor.numel() * tensor.element_size())


def stage(value: Any, part: Part) -> Any:
    """Return a copy of a state dict whose tensors are in the memory of a part."""
    if isinstance(value, dict):
        return {k: stage(v, part) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [stage(v, part) for v in value]
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return items
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    tensor = _local(value)
    size = tensor.numel() * tensor.element_size()
    staged = view(part, part.place(size), tensor.dtype, tensor.shape)
    staged.copy_(tensor)
    if isinstance(value, DTensor):
        return DTensor.from_local(
            staged, value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
        )
    vars(staged).update(vars(value))  # torch describes slices of larger tensors by attributes
    return staged.requires_grad_(value.requires_grad) if value.requires_grad else staged


def view(part: Part, at: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Return a tensor over the memory of a part."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(part.mem, dtype=dtype, count=count, offset=at).view(shape)


def place_of(part: Part, tensor: torch.Tensor) -> int | None:
    """Return where a tensor is in the memory of a part; None if it is elsewhere, or not contiguous."""
    if tensor.device.type != "cpu" or tensor.numel() == 0 or not tensor.is_contiguous():
        return None
    at = tensor.data_ptr() - torch.frombuffer(part.mem, dtype=torch.uint8).data_ptr()
    return at if 0 <= at <= len(part.mem) - tensor.numel() * tensor.element_size() else None


def _local(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of this rank whose bytes are saved."""
    if isinstance(value, DTensor):
        return value.detach().to_local()
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise errors.InvalidArgument(
            f"a tensor of type {type(value).__name__} cannot be staged: make it a DTensor, or use dcp.save"
        )
    if value.layout != torch.strided:
        raise errors.InvalidArgument(f"a tensor of layout {value.layout} cannot be saved, only dense ones")
    return value.detach()
