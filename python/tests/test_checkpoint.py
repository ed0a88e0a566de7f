"""Tests of moraine.checkpoint against a real agent and a real cluster.

MORAINE_AGENT names the agent's socket, and MORAINE_TEST_AGENT_MEMORY what its arenas may take.
integration.TestPython starts both.
"""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

from moraine import _agent, _arrays, checkpoint, errors


@pytest.fixture
def path():
    return f"/runs/python-{uuid.uuid4().hex[:12]}"


def open_run(path, launch="one", **kwargs):
    return checkpoint.Run(path, launch=checkpoint.Launch(launch), **kwargs)


def test_arrays_come_back(path):
    rng = np.random.default_rng(1)
    state = {
        "f32": rng.standard_normal((300, 77)).astype(np.float32),
        "f16": rng.standard_normal(1000).astype(np.float16),
        "i64": np.arange(12).reshape(3, 4),
        "bool": np.array([True, False, True]),
        "scalar": np.float64(3.5).reshape(()),
        "empty": np.zeros((0, 4), np.float32),
        "transposed": np.arange(20, dtype=np.int32).reshape(4, 5).T,
    }
    with open_run(path) as run:
        assert run.restore() is None
        save = run.save_async(state, step=7, blobs={"rng": b"state", "none": b""})
        assert save.wait("local") in ("local", "nvme")
        assert save.wait("nvme", timeout=60) == "nvme"
        k = run.open()
        assert (k.step, k.world, k.level) == (7, 1, "nvme")
        assert k.tensors()["f32"] == ("F32", (300, 77))
        got = k.read()
        assert got.keys() == state.keys()
        for name, want in state.items():
            np.testing.assert_array_equal(got[name], want)
            assert got[name].dtype == want.dtype
        assert k.from_node == sum(v.nbytes for v in state.values())
        assert k.blob("rng") == b"state"
        assert k.blob("none") == b""
        assert k.blobs == {(0, "none"): 0, (0, "rng"): 5}
        with pytest.raises(errors.NotFound):
            k.blob("rng", rank=1)
        got["f32"][:] = 0  # it is the reader's own


def used():
    """How many bytes the slots of the agent have."""
    conn = _agent.Connection(os.environ.get("MORAINE_AGENT", _agent.DEFAULT_SOCKET))
    try:
        return conn.request("status")["used"]
    finally:
        conn.close()


def test_the_agent_makes_the_memory_of_expected_bytes_at_the_opening(path):
    before = used()
    with open_run(path, expected_bytes=5 << 20) as run:
        made = used() - before
        assert made >= 5 << 20
        state = {"w": np.ones(5 << 17)}
        run.save_async(state, step=1).wait("nvme", timeout=60)
        assert len(run._slots) == 1


def test_a_run_that_is_only_read_restores_the_latest_step(path):
    with open_run(path) as run:
        run.save({"w": np.arange(3)}, step=4, timeout=60)
    with open_run(path, read_only=True) as reader:
        assert reader.restore().step == 4
        assert reader.restore(4).step == 4


def test_all_types_that_numpy_has_come_back(path):
    state = {str(np.dtype(t)): np.arange(6).astype(t).reshape(2, 3) for t in ("complex64", "float64", "uint16", "int8", "bool")}
    state["complex64"] *= 1 - 2j
    with open_run(path) as run:
        run.save(state, step=1, timeout=60)
        got = run.open().read()
        for name, want in state.items():
            np.testing.assert_array_equal(got[name], want)
            assert got[name].dtype == want.dtype


def test_ranks_save_slices_and_read_others(path):
    whole = np.arange(6000, dtype=np.int32).reshape(60, 100)
    with open_run(path, rank=0, world=2) as a, open_run(path, rank=1, world=2) as b:
        saves = [
            run.save_async({"w": checkpoint.Slice(whole[i * 30 : i * 30 + 30], (i * 30, 0), (60, 100))}, step=1)
            for i, run in enumerate((a, b))
        ]
        for save in saves:
            save.wait(timeout=60)
    with open_run(path, read_only=True) as run:
        k = run.open()
        np.testing.assert_array_equal(k.read(["w"])["w"], whole)
        cut = k.read(slices={"w": ((25, 10), (10, 50))})["w"]
        np.testing.assert_array_equal(cut, whole[25:35, 10:60])
        with pytest.raises(errors.NotFound):
            k.read(["x"])


def test_tensors_are_read_into_arrays_of_the_caller(path):
    rng = np.random.default_rng(1)
    state = {
        "rows": rng.standard_normal((1003, 77)).astype(np.float32),
        "wide": rng.integers(0, 256, (1, 1 << 20), np.uint8),
        "scalar": np.array(7),
        "empty": np.zeros((0, 4), np.float32),
    }
    with open_run(path) as run:
        run.save(state, step=1, timeout=60, blobs={"rng": b"state"})
        k = run.open()
        for batch in (64 << 20, 100_000, 1000):
            got = {name: np.zeros_like(value) for name, value in state.items()}
            k.read_into(got, batch_bytes=batch)
            for name, want in state.items():
                np.testing.assert_array_equal(got[name], want)
        columns, turned = np.zeros((500, 10), np.float32), np.zeros((77, 1003), np.float32)
        k.read_into({"rows": checkpoint.Slice(columns, (503, 20), (1003, 77))}, batch_bytes=3000)
        np.testing.assert_array_equal(columns, state["rows"][503:, 20:30])
        k.read_into({"rows": turned.T})
        np.testing.assert_array_equal(turned, state["rows"].T)
        with pytest.raises(errors.InvalidArgument, match="F32 of shape"):
            k.read_into({"rows": np.zeros((3, 3), np.float32)})
        with pytest.raises(errors.NotFound):
            k.read_into({"x": columns})


def test_memory_of_a_read_is_used_again_unless_the_caller_has_it(path):
    with open_run(path) as run:
        run.save({name: np.full(1000, i) for i, name in enumerate("abc")}, step=1, timeout=60, blobs={"rng": b"state"})
        k = run.open()
        target = np.zeros(1000, int)
        k.read_into({"a": target})
        slot = k._scratch[0]
        assert k.blob("rng") == b"state"
        k.read_into({"b": target})
        assert k._scratch[0] == slot
        kept = k.read(["c"])["c"]
        k.read_into({"a": target})
        assert k._scratch[0] != slot  # otherwise `kept` would have changed
        np.testing.assert_array_equal(kept, np.full(1000, 2))
        np.testing.assert_array_equal(target, np.full(1000, 0))


def test_large_arrays_are_copied_by_several_threads(path, monkeypatch):
    monkeypatch.setattr("moraine._arrays._COPY_SHARE", 1000)
    monkeypatch.setattr("moraine._arrays._COPIERS", 7)
    rng = np.random.default_rng(1)
    state = {"flat": rng.integers(0, 256, 100_003, np.uint8), "turned": rng.standard_normal((101, 53)).T, "few": np.ones((3, 5000))}
    with open_run(path) as run:
        run.save(state, step=1, timeout=60)
        got = {name: np.zeros_like(value) for name, value in state.items()}
        run.open().read_into(got)
        for name, want in state.items():
            np.testing.assert_array_equal(got[name], want)


def test_a_step_survives_its_trainer(path):
    program = f"""
import os, signal, numpy as np
from moraine import checkpoint
run = checkpoint.Run({path!r}, launch=checkpoint.Launch("one"))
run.save_async({{"w": np.arange(100000)}}, step=3).wait("local")
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    with open_run(path, launch="two") as run:  # not Busy: nothing of the dead trainer is left
        k = run.restore()
        assert k.step == 3
        np.testing.assert_array_equal(k.read()["w"], np.arange(100000))


def test_errors_say_what_to_do(path):
    with pytest.raises(errors.Unavailable, match="moraine agent"):
        checkpoint.Run(path, launch=checkpoint.Launch("one"), agent="/nonexistent/agent.sock")
    with open_run(path) as run:
        with pytest.raises(errors.InvalidArgument, match="complex128"):
            run.save_async({"w": np.zeros(3, complex)}, step=1)
        for value in (1, [1.0, 2.0], {"lr": 0.1}, checkpoint.Slice([1.0], (0,), (2,))):
            with pytest.raises(errors.InvalidArgument, match="optim is no array: put it into blobs"):
                run.save_async({"optim": value}, step=1)
        with pytest.raises(errors.NoSpace, match="--arena-memory"):
            run.save_async({"w": np.broadcast_to(np.uint8(0), (1 << 40,))}, step=1)
        run.save_async({"w": np.zeros(3)}, step=1).wait(timeout=60)
        with pytest.raises(errors.Exists):
            run.save_async({"w": np.zeros(3)}, step=1)
        with pytest.raises(errors.NotFound):
            run.open(step=9)
        with pytest.raises(errors.Busy):
            open_run(path, launch="another")


class Broken:
    """An array that cannot be copied."""

    dtype, shape = np.dtype(np.float32), (4,)

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no such device")


def test_a_write_after_the_seal_is_in_no_step(path):
    """As that of a program that keeps a view of the agent's memory and writes to it too late."""
    with open_run(path) as run:
        run.save_async({"w": np.zeros(12 << 20, np.uint8)}, step=1)  # the agent writes it first
        late = run.save_async({"w": np.zeros(1 << 20, np.uint8)}, step=2)
        next(reversed(run._slots.values()))[1000] = 1
        try:
            late.wait(timeout=60)
            assert not run.open(step=2).read()["w"].any()  # it was written before the change
        except errors.Corrupt:
            pass
        run.save({"w": np.ones(3)}, step=3, timeout=60)


def test_a_failed_copy_aborts_the_step(path):
    with open_run(path, rank=0, world=2) as a, open_run(path, rank=1, world=2) as b:
        save = b.save_async({"w": np.zeros(1)}, step=1)
        with pytest.raises(RuntimeError):
            a.save_async({"v": Broken()}, step=1)
        with pytest.raises(errors.Aborted, match="no such device"):
            save.wait(timeout=60)


def fail_step(a, b, step):
    """Let the save of rank b fail after its seal, because rank a's does."""
    save = b.save_async({"w": np.zeros(1)}, step=step)
    with pytest.raises(RuntimeError):
        a.save_async({"v": Broken()}, step=step)
    with pytest.raises(errors.Aborted, match="no such device"):
        save.wait(timeout=60)


def test_a_failed_save_is_seen_at_the_next(path, caplog):
    with open_run(path, rank=0, world=2) as a, open_run(path, rank=1, world=2) as b:
        fail_step(a, b, 1)
        assert b.last_failure is None  # nobody has told this process
        b.save_async({"w": np.zeros(1)}, step=2)
        assert b.last_failure.step == 1
        assert isinstance(b.last_failure.error, errors.Aborted)
        assert "step 1 has failed" in caplog.text and "no such device" in caplog.text
        assert a.last_failure is None  # its caller has the exception
        a.save_async({"v": np.zeros(1)}, step=2).wait(timeout=60)  # it is not fatal


def test_a_caller_decides_what_a_failure_does(path):
    seen = []

    def stop(failure):
        seen.append(failure.step)
        raise failure.error

    with open_run(path, rank=0, world=2) as a, open_run(path, rank=1, world=2, on_failure=stop) as b:
        fail_step(a, b, 1)
        other = a.save_async({"v": np.zeros(1)}, step=2)
        with pytest.raises(errors.Aborted, match="no such device"):
            b.save_async({"w": np.zeros(1)}, step=2)
        assert seen == [1]
        with pytest.raises(errors.Aborted):
            other.wait(timeout=60)
        b.save_async({"w": np.zeros(1)}, step=3)  # once is enough
        assert seen == [1]


def test_a_seal_that_fails_aborts_the_step(path):
    with open_run(path) as run:
        with pytest.raises(errors.TooLarge):
            run.save_async({f"{i:06}" + "w" * 900: np.zeros(0) for i in range(20000)}, step=1)
        run.save_async({"w": np.zeros(3)}, step=2).wait(timeout=60)  # the run is usable


def test_an_interrupt_does_not_mix_up_replies(path, monkeypatch):
    with open_run(path) as run:
        run.save_async({"w": np.zeros(3)}, step=1).wait(timeout=60)

        def interrupted(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as m:
            m.setattr(run._conn, "_read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.open()
        assert run.open().tensors() == {"w": ("F64", (3,))}


def test_a_step_that_is_not_open_is_not_read_from_another(path):
    with open_run(path) as run:
        for step in (1, 2):
            run.save_async({"w": np.full(3, step)}, step=step).wait(timeout=60)
        first = run.open(step=1)
        second = run.open(step=2)
        with pytest.raises(errors.InvalidArgument, match="step 1"):
            first.read()
        np.testing.assert_array_equal(second.read()["w"], [2, 2, 2])
    with pytest.raises(errors.InvalidArgument):
        second.read()


def test_a_child_does_not_keep_the_connection(path):
    with open_run(path, rank=0, world=2) as a, open_run(path, rank=1, world=2) as b:
        save = b.save_async({"w": np.zeros(1)}, step=1)
        program = f"""
import os, signal, time, numpy as np
from moraine import checkpoint
run = checkpoint.Run({path!r}, rank=0, world=2, launch=checkpoint.Launch("one"))
run._conn.request("begin", step=1, bytes=100)
if os.fork() == 0:
    time.sleep(25)  # it outlives the trainer
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
        subprocess.run([sys.executable, "-c", program], timeout=60)
        with pytest.raises(errors.Aborted):
            save.wait(timeout=20)
        a.save_async({"v": np.zeros(1)}, step=2)


def test_every_save_says_how_it_ended(path):
    with open_run(path) as run:
        saves = [run.save_async({"w": np.full(1000, step)}, step=step) for step in range(1, 6)]
        saves[-1].wait(timeout=60)
        assert [save.wait("nvme", timeout=60) for save in saves] == ["nvme"] * 5


def test_a_save_waits_for_a_level(path):
    with open_run(path) as run:
        save = run.save({"w": np.arange(10)}, step=1, timeout=60, level="memory")
        assert save.wait("memory", timeout=60) in ("memory", "nvme")
        assert save.wait("nvme", timeout=60) == "nvme"
        done = save.progress()
        assert done.state == "committed" and done.written == done.total > 80
        with pytest.raises(errors.Unavailable, match="no chunkserver has a bucket"):
            save.wait("object", timeout=60)
        assert run.open(level="memory").step == 1
        with pytest.raises(errors.NotFound):
            run.open(level="object")
        assert run.restore(level="object", fix=False) is None
        for bad in ({"level": "object"}, {"busy": "maybe"}):
            with pytest.raises(errors.InvalidArgument):
                run.save_async({"w": np.arange(10)}, step=2, **bad)


def test_a_step_that_stays_in_memory_is_opened_by_its_number():
    """integration.TestPython has set that only every 10th step below /in-memory goes to nvme by itself."""
    with open_run(f"/in-memory/{uuid.uuid4().hex}") as run:
        run.save({"w": np.full(3, 10)}, step=10, timeout=60)
        save = run.save({"w": np.full(3, 11)}, step=11, timeout=60, level="memory")
        k = run.open(step=11)
        assert (k.step, k.level) == (11, "memory")
        np.testing.assert_array_equal(k.read()["w"], [11, 11, 11])
        with pytest.raises(errors.NotFound):
            run.open(step=11, level="nvme")
        assert run.open().step == 10
        assert run.open(level="memory").step == run.restore(step=11).step == 11
        save.wait("nvme", timeout=60)
        assert run.open().step == 11


def test_arrays_in_the_memory_of_the_agent_are_saved_without_a_copy(path, monkeypatch):
    def no_copy(*_):
        raise AssertionError("an array was copied")

    copy = _arrays.copy_into
    want = np.arange(1_500_000, dtype=np.float32).reshape(500, 3000)
    with open_run(path) as run:
        monkeypatch.setattr("moraine._arrays.copy_into", no_copy)
        shapes = {"w": ((500, 3000), "float32"), "rows": ((10, 4), np.int64), "none": ((0, 3), np.dtype("float64"))}
        with run.allocate(1, shapes, slices={"rows": ((5, 0), (40, 4))}, blob_bytes=5) as part:
            assert {n: (a.shape, a.dtype.name) for n, a in part.items()} == {
                "w": ((500, 3000), "float32"), "rows": ((10, 4), "int64"), "none": ((0, 3), "float64")}
            np.multiply(want, 1, out=part["w"])
            part["rows"][:] = 7
            assert np.frombuffer(part.memory("rows"), np.int64)[39] == 7
            with monkeypatch.context() as allowed:  # other steps are saved meanwhile
                allowed.setattr("moraine._arrays.copy_into", copy)
                run.save({"w": want[:1]}, step=0, timeout=60)
            save = part.seal(blobs={"rng": b"state"})
            with pytest.raises(ValueError, match="read-only"):
                part["w"][0, 0] = 1
            with pytest.raises(errors.InvalidArgument, match="sealed already"):
                part.seal()
        with pytest.raises(errors.Aborted, match="rows"):
            save.wait("nvme", timeout=60)  # nobody has saved the other rows
        with run.allocate(2, {"w": ((500, 3000), "float32")}, blob_bytes=5) as part:
            part["w"][:] = want
            save = part.seal(blobs={"rng": b"state"})
        assert save.wait("nvme", timeout=60) == "nvme"
        k = run.open(step=2)
        np.testing.assert_array_equal(k.read()["w"], want)
        assert k.blob("rng") == b"state"


def test_a_part_that_is_not_sealed_ends_its_step(path):
    with open_run(path) as run:
        with pytest.raises(RuntimeError), run.allocate(1, {"w": ((10,), "float32")}) as part:
            raise RuntimeError("diverged")
        with run.allocate(2, {"w": ((10,), "float32")}) as part:
            pass
        with pytest.raises(errors.Aborted, match="allocate the next one"):
            part.seal()
        with run.allocate(3, {"w": ((10,), "float32")}) as part, pytest.raises(errors.TooLarge):
            part.seal(blobs={"rng": bytes(1 << 22)})
        for shapes, slices in (({"w": ((-1,), "float32")}, None), ({"w": ((1,), "U7")}, None), ({}, {"w": ((0,), (2,))})):
            with pytest.raises(errors.InvalidArgument):
                run.allocate(4, shapes, slices=slices)
        run.save({"w": np.zeros(3)}, step=5, timeout=60)  # the run goes on
        with pytest.raises(errors.NotFound):
            run.open(step=1)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e300, 8 * 24 * 3600])
def test_a_time_past_its_bound_is_refused(path, seconds):
    with open_run(path) as run:
        with pytest.raises(errors.InvalidArgument, match="seal_timeout"):
            run.save_async({"w": np.zeros(3)}, step=1, seal_timeout=seconds)
        save = run.save_async({"w": np.zeros(3)}, step=2)
        if seconds != 8 * 24 * 3600:
            with pytest.raises(errors.InvalidArgument, match="timeout"):
                save.wait("nvme", timeout=seconds)
        save.wait("nvme", timeout=60)


def test_a_save_may_be_skipped(path):
    with open_run(path, rank=0, world=2) as a, open_run(path, rank=1, world=2) as b:

        class Slow:
            """An array during whose copy another rank finds no memory."""

            dtype, shape = np.dtype(np.uint8), (30 << 20,)

            def __array__(self, *args, **kwargs):
                with pytest.raises(errors.Busy):
                    b.save_async({"w": np.zeros(30 << 20, np.uint8)}, step=1, busy="skip")
                return np.zeros(30 << 20, np.uint8)

        a.save_async({"w": Slow()}, step=1)
        b.save_async({"v": np.zeros(1)}, step=1, busy="supersede").wait(timeout=60)


def test_the_steps_before_a_damaged_one_can_be_restored(path):
    with open_run(path) as run:
        for step in (1, 2, 3):
            run.save({"w": np.full(3, step)}, step=step, timeout=60)
        last = run.restore(fallback=True)
        assert (last.step, last.skipped) == (3, [])
        before = run.restore(before=last)
        np.testing.assert_array_equal(before.read()["w"], [2, 2, 2])
        assert run.restore(before=run.restore(before=before)) is None
        assert run.restore(tag="best", fix=False) is None
        assert run.restore(healthy=True, fix=False) is None
    with open_run(path, launch="two") as run:
        assert run.restore(before=run.restore(fallback=True)).step == 2
        run.open(step=2, fix=True)  # as the ranks have agreed
        assert run.restore().step == 2


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "1", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "node7", "MASTER_PORT": "41001",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_q8/r_x1/attempt_1/0/error.json",
}


@pytest.mark.parametrize(
    "env, want",
    [
        ({"MORAINE_LAUNCH": "x", "MORAINE_JOB": "7", "MORAINE_RESTART": "2"}, ("x", "7", 2)),
        (
            {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "4"},
            ("slurm-12.3-requeue-1-restart-4", "slurm-12", 1 << 40 | 3 << 16),
        ),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "4294967291"}, ("slurm-12.0-requeue-0-restart-0", "slurm-12", 0)),
        ({"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "1"}, ("torchrun-r-restart-1", "torchrun-r", 0)),
        (TORCHRUN, ("torchrun-r-x1-restart-1", "torchrun-r", 0)),
        (TORCHRUN | {"SLURM_JOB_ID": "12"}, ("slurm-12.0-requeue-0-x1-restart-1", "slurm-12", 0)),
        (TORCHRUN | {"GROUP_WORLD_SIZE": "2"}, ("torchrun-r-node7:41001-restart-1", "torchrun-r", 0)),
        (TORCHRUN | {"TORCHELASTIC_ERROR_FILE": ""}, ("torchrun-r-node7:41001-restart-1", "torchrun-r", 0)),
        (TORCHRUN | {"MORAINE_LAUNCH": "x"}, ("x-restart-1", "launch-x", 0)),
    ],
)
def test_the_launch_is_found(env, want):
    launch = checkpoint.launch_from_env(env)
    assert (launch.name, launch.job, launch.restart) == want


def test_no_launch_is_an_error():
    with pytest.raises(errors.InvalidArgument, match="MORAINE_LAUNCH"):
        checkpoint.launch_from_env({"TORCHELASTIC_RUN_ID": "none"})
    assert "MORAINE_AGENT" in os.environ


def test_a_launch_name_that_repeats_is_refused(path):
    """A second start under the same name gets Conflict, not the step from which the first one went on."""
    with open_run(path) as run:
        run.save({"w": np.zeros(4, np.float32)}, 1)
    with open_run(path) as run:
        with pytest.raises(errors.Conflict, match="MORAINE_LAUNCH"):
            run.restore()
        assert run.open().step == 1


def test_a_run_has_one_path(path):
    with open_run(f"moraine://{path}/", launch="one", rank=np.int64(0), world=np.uint8(1)) as run:
        assert run.path == path
        run.save({"w": np.zeros(4, np.float32)}, np.int32(7)).wait("nvme")
    for way in (path, path[1:], Path(path)):
        with open_run(way, read_only=True) as run:
            assert run.open(step=np.int64(7)).step == 7
    for way in (f"moraine://host1:7400{path}", f"moraine:{path}"):
        with pytest.raises(errors.InvalidArgument, match=f"write moraine://{path}"):
            open_run(way)


@pytest.mark.parametrize("bad", [{"rank": -1}, {"rank": 2, "world": 2}, {"world": 0}, {"world": 1.5}, {"rank": "0"}, {"world": 1 << 17}])
def test_a_rank_is_a_count(path, bad):
    with pytest.raises(errors.InvalidArgument, match="whole number"):
        open_run(path, **bad)


def test_a_step_is_a_count(path):
    with open_run(path) as run:
        for step in (-1, 100.0, 2**64, "7"):
            with pytest.raises(errors.InvalidArgument, match="step="):
                run.save_async({"w": np.zeros(4, np.float32)}, step)
            with pytest.raises(errors.InvalidArgument, match="step="):
                run.open(step=step)
        run.save({"w": np.zeros(4, np.float32)}, 2**64 - 1).wait("nvme")
        assert run.open().step == 2**64 - 1
