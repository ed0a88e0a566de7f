"""Arrays and tensors as bytes: numpy arrays, and torch tensors without a dependency on torch."""

from __future__ import annotations

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
}
_DTYPES = {known: name for name, known in _NAMES.items()}
_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


def size_of(dtype: str) -> int:
    """Return the bytes of one element."""
    return _SIZES.get(dtype, 1)


def describe(value: Any) -> tuple[str, list[int], int]:
    """Return the dtype, the shape and the bytes of an array or tensor."""
    name = str(value.dtype).removeprefix("torch.")
    if name not in _NAMES:
        raise errors.InvalidArgument(f"elements of type {name} cannot be saved; these can: {', '.join(_NAMES)}")
    shape = [int(n) for n in value.shape]
    count = 1
    for n in shape:
        count *= n
    return _NAMES[name], shape, count * size_of(_NAMES[name])


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
        out[:] = array.reshape(-1).view(np.uint8)
        return
    np.copyto(out.view(array.dtype).reshape(array.shape), array)


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
