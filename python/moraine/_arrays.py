"""Arrays and tensors as bytes: numpy arrays, and torch tensors without a dependency on torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from moraine import errors

# Names of numpy and torch, and those of safetensors. numpy has no bfloat16 of its own: package
# ml_dtypes adds it, and float8.
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
_DTYPES = {known: name for name, known in _NAMES.items()}
_SIZES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}

_COPY_SHARE = 8 << 20
"""How many bytes justify another thread of a copy. numpy copies without the interpreter's lock."""
_COPIERS = min(8, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Slice:
    """One rank's slice of a larger tensor: where it begins in it, and the shape of all of it."""

    value: Any
    offset: tuple[int, ...]
    shape: tuple[int, ...]


def size_of(dtype: str) -> int:
    """Return the bytes of one element."""
    return _SIZES.get(dtype, 1)


def describe(tensor: str, value: Any) -> tuple[str, list[int], int]:
    """Return the dtype, the shape and the bytes of an array or tensor. `tensor` is its name, for errors."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise errors.InvalidArgument(f"{tensor} is no array: put it into blobs, or use moraine.torch for nested states")
    if any(hasattr(value, name) for name in ("to_local", "local_shards")):  # DTensor, ShardedTensor: the shape is that of all ranks
        raise errors.InvalidArgument(
            f"{tensor} is a {type(value).__name__}, of which this rank has a part: use moraine.torch, or checkpoint.Slice of the local tensor"
        )
    name = str(value.dtype).removeprefix("torch.")
    if name not in _NAMES:
        raise errors.InvalidArgument(f"elements of type {name} cannot be saved; these can: {', '.join(_NAMES)}")
    shape = [int(n) for n in value.shape]
    count = 1
    for n in shape:
        count *= n
    return _NAMES[name], shape, count * size_of(_NAMES[name])


def describe_as(tensor: str, shape: Any, dtype: Any) -> tuple[str, list[int], int]:
    """Return the dtype, the shape and the bytes of an array that does not exist yet. `dtype` is one of numpy or torch, or its name."""
    name = str(dtype).removeprefix("torch.")
    if name not in _NAMES:
        name = np.dtype(dtype).name
    if name not in _NAMES:
        raise errors.InvalidArgument(f"{tensor}: elements of type {name} cannot be saved; these can: {', '.join(_NAMES)}")
    dims = [int(n) for n in shape]
    count = size_of(_NAMES[name])
    for n in dims:
        if n < 0:
            raise errors.InvalidArgument(f"{tensor}: a shape of {tuple(dims)}")
        count *= n
    return _NAMES[name], dims, count


def copy_into(dst: memoryview, value: Any) -> None:
    """Copy the elements of an array or tensor, in row-major order, into memory of its size."""
    if len(dst) == 0:
        return
    out = np.frombuffer(dst, dtype=np.uint8)
    if hasattr(value, "detach"):  # a torch tensor, of any device
        import torch

        torch.from_numpy(out).view(value.dtype).view(value.shape).copy_(value.detach())
        return
    array = np.asarray(value)
    if array.nbytes != len(dst):  # numpy would repeat a single element
        raise errors.InvalidArgument(f"an array of {array.nbytes} bytes says that it has {len(dst)}")
    if array.flags.c_contiguous:
        _copy(out, array.reshape(-1).view(np.uint8))
        return
    _copy(out.view(array.dtype).reshape(array.shape), array)


def copy_out(target: Any, offset: tuple[int, ...], shape: tuple[int, ...], src: memoryview, dtype: str) -> None:
    """Copy elements in row-major order into a cut of an array or tensor."""
    cut = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
    if len(src) == 0:
        return
    if hasattr(target, "detach"):
        import torch

        value = torch.frombuffer(src, dtype=target.dtype).view(shape)
        target.detach()[cut].copy_(value)
        return
    _copy(target[(*cut, ...)], from_memory(src, dtype, list(shape)))


def _copy(dst: np.ndarray, src: np.ndarray) -> None:
    """Copy an array to another of its shape, a large one by several threads."""
    threads = min(_COPIERS, dst.nbytes // _COPY_SHARE)
    if threads < 2 or dst.shape[0] < threads:
        np.copyto(dst, src)
        return
    ends = [dst.shape[0] * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda i: np.copyto(dst[ends[i] : ends[i + 1]], src[ends[i] : ends[i + 1]]), range(threads)))


def cuts(offset: tuple[int, ...], shape: tuple[int, ...], itemsize: int, limit: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Cut a shape into pieces of `limit` bytes at most, along the first dimension that has more than one.

    Gives the offset, the shape and the bytes of each piece. A single element is a piece in any case.
    """
    size = itemsize
    for n in shape:
        size *= n
    dim = next((i for i, n in enumerate(shape) if n > 1), None)
    if size <= limit or dim is None:
        yield offset, shape, size
        return
    rows = max(shape[dim] * limit // size, 1)
    for at in range(0, shape[dim], rows):
        piece = shape[:dim] + (min(rows, shape[dim] - at),) + shape[dim + 1 :]
        yield from cuts(offset[:dim] + (offset[dim] + at,) + offset[dim + 1 :], piece, itemsize, limit)


def from_memory(buf: memoryview, dtype: str, shape: list[int]) -> np.ndarray:
    """Return an array over memory. A dtype that numpy lacks becomes that of ml_dtypes, or bytes."""
    name = _DTYPES[dtype]
    try:
        kind = np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes

            kind = np.dtype(getattr(ml_dtypes, name))
        except ImportError:
            kind = np.dtype(f"V{size_of(dtype)}")
    return np.frombuffer(buf, dtype=kind).reshape(shape)
