"""How a rank finds out to which launch of its job it belongs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from moraine import errors


@dataclass(frozen=True)
class Launch:
    """One start of a training job. All ranks of the start share `name`, and no other start has it.

    Of two starts of one `job`, one with a lesser `restart` is late. Of starts with the same one, that which opens the
    run last is the later.
    """

    name: str
    job: str = ""
    restart: int = 0


def launch_from_env(env: Mapping[str, str] = os.environ) -> Launch:
    """Find the launch in the variables of MORAINE_LAUNCH, Slurm or torchrun, in this order."""

    def number(name: str, limit: int) -> int:
        text = env.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and int(text) < limit else 0

    torchrun, count = env.get("TORCHELASTIC_RUN_ID", ""), number("TORCHELASTIC_RESTART_COUNT", 1 << 16)
    if name := env.get("MORAINE_LAUNCH"):
        job = env.get("MORAINE_JOB", "") or (f"launch-{name}" if torchrun else "")
        return Launch(f"{name}-restart-{count}" if count else name, job, number("MORAINE_RESTART", 1 << 63))
    start = _start_of_torchrun(env)
    if job := env.get("SLURM_JOB_ID"):
        requeue, step = number("SLURM_RESTART_COUNT", 1 << 20), number("SLURM_STEP_ID", 1 << 24)
        name = f"slurm-{job}.{step}-requeue-{requeue}{start}-restart-{count}"
        return Launch(name, f"slurm-{job}", requeue << 40 | step << 16)
    if torchrun not in ("", "none"):
        return Launch(f"torchrun-{torchrun}{start}-restart-{count}", f"torchrun-{torchrun}")
    raise errors.InvalidArgument("no launch is named: set MORAINE_LAUNCH to a string that all ranks of one launch share")


def _start_of_torchrun(env: Mapping[str, str]) -> str:
    """Return what all ranks of one start of torchrun share and no other start has, with a dash before it.

    The rule is that of `LaunchFromEnv` in Go, which says why.
    """
    run_id, port = env.get("TORCHELASTIC_RUN_ID", ""), env.get("MASTER_PORT", "")
    if not run_id:
        return ""
    # <directory of logs>/<run id>_<random>/attempt_<n>/<local rank>/error.json
    logs = env.get("TORCHELASTIC_ERROR_FILE", "").split("/")[-4:][0]
    random = logs.removeprefix(f"{run_id}_")
    if random not in ("", logs) and env.get("GROUP_WORLD_SIZE") == "1":
        return f"-{random}"
    return f"-{env.get('MASTER_ADDR', '')}:{port}" if port else ""
