"""Saves that have failed in the background, as the agent reports them at the next save."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moraine import errors

log = logging.getLogger("moraine")


@dataclass(frozen=True)
class Failure:
    """A step that cannot be used: its save has failed, or its index cannot be read."""

    step: int
    error: errors.MoraineError

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Failure:
        """Return the failure that a reply of the agent names."""
        return cls(reply["step"], errors.of(reply["error"]["kind"], reply["error"]["text"]))


class Failures:
    """What a run knows of its failed saves."""

    def __init__(self, path: str, rank: int, report: Callable[[Failure], None] | None) -> None:
        self.last: Failure | None = None
        self._path, self._rank, self._report = path, rank, report

    def note(self, failed: list[dict[str, Any]]) -> None:
        """Report what a reply of the agent says has failed. All are noted before the first is reported."""
        failures = [Failure.of(f) for f in failed]
        if failures:
            self.last = failures[-1]
        for failure in failures:
            if self._report:
                self._report(failure)
            else:
                log.warning("%s: rank %d: the save of step %d has failed: %s", self._path, self._rank, failure.step, failure.error)
