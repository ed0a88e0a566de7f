"""How a rank finds out to which launch of its job it belongs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from moraine import errors


@dataclass(frozen=True)
class Launch:
    """One start of a training job. All ranks of the start share `name`, and no other start has it.

    Of two starts of one `job`, that with the greater `restart` is the later.
    """

    name: str
    job: str = ""
    restart: int = 0


def launch_from_env(env: Mapping[str, str] = os.environ) -> Launch:
    """Find the launch in the variables of MORAINE_LAUNCH, Slurm or torchrun, in this order."""

    def number(name: str, limit: int) -> int:
        text = env.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and int(text) < limit else 0

    if env.get("MORAINE_LAUNCH"):
        return Launch(env["MORAINE_LAUNCH"], env.get("MORAINE_JOB", ""), number("MORAINE_RESTART", 1 << 63))
    restart = number("TORCHELASTIC_RESTART_COUNT", 1 << 16)
    if job := env.get("SLURM_JOB_ID"):
        requeue, step = number("SLURM_RESTART_COUNT", 1 << 20), number("SLURM_STEP_ID", 1 << 24)
        name = f"slurm-{job}.{step}-requeue-{requeue}-restart-{restart}"
        return Launch(name, f"slurm-{job}", requeue << 40 | step << 16 | restart)
    torchrun = env.get("TORCHELASTIC_RUN_ID", "")
    if torchrun not in ("", "none"):
        return Launch(f"torchrun-{torchrun}-restart-{restart}", f"torchrun-{torchrun}", restart)
    raise errors.InvalidArgument("no launch is named: set MORAINE_LAUNCH to a string that all ranks of one launch share")
