"""What callers give: paths of runs, and counts."""

from __future__ import annotations

import operator
import os
import posixpath
from typing import Any

from moraine import errors

MAX_STEP = 2**64 - 1
MAX_WORLD = 1 << 16


def run_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a run in its one form. It may be written as moraine:///PATH: the agent knows the cluster."""
    text = os.fsdecode(path)
    if text.startswith("moraine:"):
        hosts, _, rest = text.removeprefix("moraine:").removeprefix("//").partition("/")
        if hosts or not text.startswith("moraine:///"):
            raise errors.InvalidArgument(
                f"{text}: the agent decides which cluster it is, so the address of a run has no hosts: write moraine:///{rest}"
            )
        text = rest
    return posixpath.normpath("/" + text.lstrip("/"))


def count(name: str, value: Any, most: int, least: int = 0) -> int:
    """Return a number that is given as any kind of integer, such as numpy's."""
    try:
        n = operator.index(value)
    except TypeError:
        n = -1
    if not least <= n <= most:
        raise errors.InvalidArgument(f"{name}={value!r}: it is a whole number from {least} to {most}")
    return n
