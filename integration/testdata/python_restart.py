"""A training job of two ranks that goes on while the agent of its node is killed and started again.

Usage: python_restart.py RUN. It says on standard output where it is, and waits for a line on standard input.
"""

import sys
import threading

import numpy as np

from moraine import checkpoint, errors


def meet(where):
    """Say where the job is, and wait until the test goes on."""
    print(where, flush=True)
    assert sys.stdin.readline(), "the test has ended"


def state(rank, step):
    return {f"w{rank}": np.full(1000, step * 10 + rank)}


ranks = [checkpoint.Run(sys.argv[1], rank=r, world=2, launch=checkpoint.Launch("one")) for r in range(2)]
saves = {step: [run.save_async(state(run.rank, step), step) for run in ranks] for step in (1, 2)}
for step in saves.values():
    for save in step:
        save.wait("nvme", timeout=60)
third = ranks[0].save_async(state(0, 3), 3)  # rank 1 is late
reached = []
waiting = threading.Thread(target=lambda: reached.append(third.wait("nvme", timeout=120)))
waiting.start()
meet("waiting")

# No agent answers.
try:
    third.wait("nvme", timeout=0.5)
    raise AssertionError("nobody can have said that")
except errors.Timeout as err:
    assert "no agent answered" in str(err), err
try:
    third.progress(timeout=0.3)
    raise AssertionError("nobody can have said that")
except errors.Timeout:
    pass
meet("alone")

# The next agent knows the newest good part of each rank, and the sealed one. The cluster knows the others.
assert saves[1][0].wait("nvme", timeout=60) == "nvme"
assert saves[1][1].progress().state == "committed"
try:
    checkpoint.Save(ranks[0], 99).wait("nvme", timeout=60)
    raise AssertionError("there is no such step")
except errors.NotFound:
    pass
assert waiting.is_alive() and not reached
ranks[1].save_async(state(1, 3), 3)
waiting.join()
assert reached == ["nvme"], reached
with checkpoint.Run(sys.argv[1], read_only=True) as reader:
    last = reader.restore()
    assert last.step == 3, last.step
    np.testing.assert_array_equal(last.read(["w1"])["w1"], state(1, 3)["w1"])

with checkpoint.Run("/runs/adopted", read_only=True) as reader:
    adopted = reader.open()
    assert adopted.step == 5
    try:
        adopted.read()
        raise AssertionError("only Megatron knows its tensors")
    except errors.Unimplemented as err:
        assert "the step is adopted from files" in str(err), err
print("done", flush=True)
