"""The example of a training loop is killed at random moments, and always goes on from a good checkpoint."""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

import numpy as np
from ranks import open_run

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "train-torch" / "train.py"
KILLS = 20
EVERY = 3
WORLD = 2


class Launch:
    """The ranks of one launch of the training, each a process, and what they print."""

    def __init__(self, run, number, steps):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.out = [tempfile.TemporaryFile("w+") for _ in range(WORLD)]
        self.err = [tempfile.TemporaryFile("w+") for _ in range(WORLD)]
        env = os.environ | {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1",
            "MORAINE_LAUNCH": f"launch-{number}", "MORAINE_JOB": "training", "MORAINE_RESTART": str(number),
        }
        args = [sys.executable, str(PROGRAM), "--run", run, "--steps", str(steps), "--every", str(EVERY)]
        self.ranks = [
            subprocess.Popen(args, env=env | {"RANK": str(i)}, stdout=self.out[i], stderr=self.err[i]) for i in range(WORLD)
        ]

    def lines(self):
        """Return what all ranks have said so far, without a line that is not complete."""
        said = []
        for out in self.out:
            out.seek(0)
            said += [json.loads(line) for line in out.read().splitlines(keepends=True) if line.endswith("\n")]
        return said

    def await_steps(self):
        """Wait until a rank has trained a step."""
        until = time.monotonic() + 120
        while not any("loss" in line for line in self.lines()):
            assert time.monotonic() < until and all(rank.poll() is None for rank in self.ranks), self.errors()
            time.sleep(0.02)

    def kill(self):
        """Kill all ranks as a node that ends does. Return what they have said."""
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
        for rank in self.ranks:
            rank.wait()
        return self.lines()

    def end(self):
        """Wait until the training has ended."""
        for rank in self.ranks:
            assert rank.wait(timeout=300) == 0, self.errors()
        return self.lines()

    def errors(self):
        text = []
        for err in self.err:
            err.seek(0)
            text.append(err.read()[-3000:])
        return "\n".join(text)


def losses(lines):
    return {(line["rank"], line["step"]): line["loss"] for line in lines if "loss" in line}


def test_a_killed_training_gives_the_losses_of_the_undisturbed_one():
    seed = int(os.environ.get("MORAINE_TEST_SEED") or time.time_ns() % (1 << 32))
    print(f"seed {seed}")
    rng = random.Random(seed)
    name = uuid.uuid4().hex[:12]
    killed, whole = f"/runs/killed-{name}", f"/runs/whole-{name}"
    said, resumed, last, sealed = [], [], 0, 0
    for number in range(1, KILLS + 2):
        steps = 1 << 30 if number <= KILLS else last + 2 * EVERY
        launch = Launch(killed, number, steps)
        try:
            if number > KILLS:
                lines = launch.end()
            else:
                if rng.random() < 0.8:
                    launch.await_steps()
                time.sleep(rng.uniform(0, 2))
                lines = launch.kill()
        finally:
            launch.kill()
        points = {line["resumed"] for line in lines if "resumed" in line}
        assert len(points) <= 1, f"seed {seed}: the ranks resumed from {points}"
        trained = [line["step"] for line in lines if "loss" in line]
        if points or trained:
            point = max(points, default=0)
            resumed.append(point)
            assert point % EVERY == 0 and point <= last, f"seed {seed}: resumed from {point}, though {last} was the last step"
            assert point >= sealed, f"seed {seed}: resumed from {point}, though the save of step {sealed} had ended"
        said += lines
        if trained:
            last = max(last, *trained)
            # At the begin of a save the one before has ended.
            sealed = max(sealed, (max(trained) - 1) // EVERY * EVERY - EVERY)
    undisturbed = losses(Launch(whole, 1, last_of(said)).end())
    wrong = {line["step"] for line in said if "loss" in line and undisturbed[line["rank"], line["step"]] != line["loss"]}
    assert not wrong, f"seed {seed}: other losses at the steps {sorted(wrong)}"
    assert losses(said).keys() == undisturbed.keys()
    compare(killed, whole, sorted(set(resumed) - {0}))
    print(f"{KILLS} kills, {last_of(said)} steps, resumed from {resumed}")


def last_of(lines):
    return max(line["step"] for line in lines if "loss" in line)


def compare(killed, whole, steps):
    """The checkpoints that a launch resumed from have the bytes of the undisturbed training."""
    assert steps
    with open_run(killed, read_only=True) as a, open_run(whole, read_only=True) as b:
        for step in steps:
            got, want = a.open(step).read(), b.open(step).read()
            assert got.keys() == want.keys() and len(got) > 10
            for key, value in want.items():
                np.testing.assert_array_equal(got[key], value)
