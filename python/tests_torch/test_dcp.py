"""Tests of moraine.torch with stock PyTorch: each in several processes, against a real agent and cluster.

MORAINE_AGENT names the agent's socket. integration.TestPyTorch starts it.
"""

import io
import pickle
import uuid

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import open_run, run
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from moraine import errors
from moraine.torch import StorageReader, StorageWriter


@pytest.fixture
def path():
    return f"/runs/torch-{uuid.uuid4().hex[:12]}"


def whole(seed, dtype=torch.float32, shape=(37, 24)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def state_of(world, seed):
    """A state with all that DCP knows: tensors that are sharded in several ways, replicated ones, and objects."""
    mesh = init_device_mesh("cpu", (world,))
    rank = dist.get_rank()
    return {
        "model": {
            "rows": distribute_tensor(whole(seed), mesh, [Shard(0)]),  # 37 rows: unevenly
            "columns": distribute_tensor(whole(seed + 1, torch.bfloat16), mesh, [Shard(1)]),
            "few": distribute_tensor(whole(seed + 2, shape=(2, 3)), mesh, [Shard(0)]),  # some ranks have none
            "same": distribute_tensor(whole(seed + 3), mesh, [Replicate()]),
            "plain": whole(seed + 4).t(),
            "scalar": torch.tensor(seed),
            "bits": torch.arange(9) % 2 == 0,
            "empty": torch.zeros(0, 4),
        },
        "optim": {"param_groups": [{"lr": seed / 10, "betas": (0.9, 0.99)}], "step": seed},
        f"only-{rank}" if rank < 2 else "nothing": {"w": whole(seed + 10 + rank), "rng": [seed, rank]},
    }


def blank_of(world):
    """The same state with other values, for a load."""
    return _map(state_of(world, 1000), lambda t: t.zero_() if t.numel() else t)


def _map(value, f):
    if isinstance(value, dict):
        return {k: _map(v, f) for k, v in value.items()}
    return f(value) if isinstance(value, torch.Tensor) else value


def check(state, seed, rank):
    model = state["model"]
    for name, value in (("rows", whole(seed)), ("columns", whole(seed + 1, torch.bfloat16)),
                        ("few", whole(seed + 2, shape=(2, 3))), ("same", whole(seed + 3))):
        assert torch.equal(model[name].full_tensor(), value), name
    assert torch.equal(model["plain"], whole(seed + 4).t())
    assert model["scalar"].item() == seed and torch.equal(model["bits"], torch.arange(9) % 2 == 0)
    assert state["optim"] == {"param_groups": [{"lr": seed / 10, "betas": (0.9, 0.99)}], "step": seed}
    if rank < 2:
        assert torch.equal(state[f"only-{rank}"]["w"], whole(seed + 10 + rank))
        assert state[f"only-{rank}"]["rng"] == [seed, rank]


def save_steps(rank, world, path):
    with open_run(path, rank, world) as r:
        writer = StorageWriter(r)
        dcp.save(state_of(world, 1), storage_writer=writer, checkpoint_id="1")
        assert writer.saved.wait("nvme", timeout=120) == "nvme"
        state = state_of(world, 2)
        writer = StorageWriter(r, step=2)
        future = dcp.async_save(state, storage_writer=writer)
        _map(state, lambda t: t.zero_() if t.numel() else t)  # the trainer goes on
        future.result()
        assert writer.saved.wait("nvme", timeout=120) == "nvme"


def load_steps(rank, world, path):
    with open_run(path, rank, world, launch=f"load-{world}") as r:
        for step in (1, 2):
            state = blank_of(world)
            dcp.load(state, storage_reader=StorageReader(r), checkpoint_id=step)
            check(state, step, rank)
        state = blank_of(world)
        reader = StorageReader(r, batch_bytes=100)  # tensors come in pieces
        assert reader.checkpoint is None
        dcp.load(state, storage_reader=reader)
        assert reader.step == reader.checkpoint.step == 2 and reader.checkpoint.from_node >= 0
        check(state, 2, rank)


def test_four_ranks_save_and_other_numbers_load(path):
    run(4, save_steps, path)
    for world in (4, 2, 3):
        run(world, load_steps, path)


def test_metadata_comes_back_without_ranks(path):
    run(2, save_steps, path)
    with open_run(path, read_only=True) as r:
        metadata = StorageReader(r, step=1).read_metadata()
        rows = metadata.state_dict_metadata["model.rows"]
        assert (tuple(rows.size), rows.properties.dtype) == ((37, 24), torch.float32)
        assert metadata.planner_data["optim.step"] == ("optim", "step")
        for rank in range(2):
            assert metadata.planner_data[f"only-{rank}.w"] == (f"only-{rank}", "w")  # of one rank
        state = {}
        dcp.state_dict_loader._load_state_dict(
            state, storage_reader=StorageReader(r, step=1), no_dist=True, planner=dcp.default_planner._EmptyStateDictLoadPlanner()
        )
        assert torch.equal(state["model"]["rows"], whole(1))
        assert state["only-1"]["rng"] == [1, 1]


def test_staged_tensors_are_not_copied_again(path, monkeypatch):
    from moraine import _arrays

    copied = []
    real = _arrays.copy_into
    monkeypatch.setattr(_arrays, "copy_into", lambda dst, value: (copied.append(len(dst)), real(dst, value)))
    state = {"a": whole(1), "b": torch.nn.Parameter(whole(2)), "n": 7}
    with open_run(path) as r:
        writer = StorageWriter(r, step=1)
        dcp.async_save(state, storage_writer=writer, async_stager=writer).result()
        assert copied == []
        dcp.save(state, storage_writer=StorageWriter(r, step=2))
        assert len(copied) == 2
        loaded = {"a": torch.zeros(37, 24), "b": torch.zeros(37, 24), "n": 0}
        writer.saved.wait("nvme", timeout=60)
        dcp.load(loaded, storage_reader=StorageReader(r, step=1))
        assert torch.equal(loaded["a"], state["a"]) and torch.equal(loaded["b"], state["b"]) and loaded["n"] == 7


def test_steps_of_both_interfaces_load_with_the_other(path):
    with open_run(path) as r:
        r.save_async({"w": np.arange(12, dtype=np.float32).reshape(3, 4)}, step=1).wait("nvme", timeout=60)
        loaded = {"w": torch.zeros(3, 4)}
        dcp.load(loaded, storage_reader=StorageReader(r, step=1))
        assert torch.equal(loaded["w"], torch.arange(12.0).reshape(3, 4))
        writer = StorageWriter(r, step=2)
        dcp.save({"m": {"w": whole(3)}}, storage_writer=writer)
        writer.saved.wait("nvme", timeout=60)
        np.testing.assert_array_equal(r.open().read(["m.w"])["m.w"], whole(3).numpy())


class Odd(DefaultSavePlanner):
    """A planner that keeps something of its own in the metadata."""

    def create_global_plan(self, plans):
        plans, metadata = super().create_global_plan(plans)
        metadata.planner_data = ["odd", len(plans)]
        return plans, metadata


class Broken(DefaultSavePlanner):
    """A planner that fails on rank 1."""

    def resolve_data(self, item):
        if dist.get_rank() == 1:
            raise RuntimeError("no such device")
        return super().resolve_data(item)


def save_with_planners(rank, world, path):
    with open_run(path, rank, world) as r:
        writer = StorageWriter(r, step=1)
        with pytest.raises(CheckpointException, match="no such device"):
            dcp.save(state_of(world, 1), storage_writer=writer, planner=Broken())
        dcp.save(state_of(world, 2), storage_writer=writer, checkpoint_id="2", planner=Odd())
        writer.saved.wait("nvme", timeout=60)
        assert StorageReader(r, step=2).read_metadata().planner_data == ["odd", world]
        with pytest.raises(errors.NotFound):
            r.open(step=1)


def test_a_rank_that_fails_leaves_no_step(path):
    run(2, save_with_planners, path)


class Failing(StorageWriter):
    """A writer whose coordinator fails after the other ranks have sealed their parts."""

    def finish(self, metadata, results):
        self.close()
        raise RuntimeError("no such device")


def save_after_a_failure(rank, world, path):
    with open_run(path, rank, world) as r:
        writer = Failing(r, step=1, level="memory", busy="supersede")
        with pytest.raises(CheckpointException, match="no such device"):
            dcp.save(state_of(world, 1), storage_writer=writer)
        if rank > 0:
            with pytest.raises(errors.Aborted):
                writer.saved.wait("nvme", timeout=60)
        writer = StorageWriter(r, step=2, level="memory", busy="supersede")
        dcp.save(state_of(world, 2), storage_writer=writer)
        assert (r.last_failure.step if r.last_failure else None) == (1 if rank > 0 else None)
        assert writer.saved.wait("memory", timeout=60) in ("memory", "nvme")


def test_a_failed_save_is_seen_at_the_next(path):
    run(2, save_after_a_failure, path)


def late_write(rank, world, path):
    with open_run(path, rank, world) as r:
        writer = StorageWriter(r, step=1)
        staged = writer.stage({"w": torch.zeros(1 << 20, dtype=torch.uint8)})
        dcp.save(staged, storage_writer=writer)
        staged["w"].fill_(1)  # it is memory of the agent, and sealed
        try:
            writer.saved.wait("nvme", timeout=60)
            assert not r.open(step=1).read(["w"])["w"].any()  # it was written before the change
        except errors.Corrupt:
            pass


def test_a_staged_tensor_that_changes_after_the_seal_is_in_no_step(path):
    run(1, late_write, path)


def test_planner_data_of_a_planner_comes_back(path):
    with open_run(path) as r:
        for stage in (False, True):
            writer = StorageWriter(r, step=1 + stage)
            if stage:
                dcp.async_save({"w": whole(1)}, storage_writer=writer, planner=Odd()).result()
            else:
                dcp.save({"w": whole(1)}, storage_writer=writer, planner=Odd())
            writer.saved.wait("nvme", timeout=60)
            assert StorageReader(r, step=1 + stage).read_metadata().planner_data == ["odd", 1]


def save_alone(rank, world, path):
    with open_run(path, rank, world) as r:
        writer = StorageWriter(r, step=1)
        dcp.save({f"own-{rank}": whole(rank)}, storage_writer=writer, use_collectives=False)
        writer.saved.wait("nvme", timeout=60)
        loaded = {f"own-{i}": torch.zeros(37, 24) for i in range(world)}
        dcp.load(loaded, storage_reader=StorageReader(r, step=1))
        for i in range(world):
            assert torch.equal(loaded[f"own-{i}"], whole(i))


def test_ranks_save_without_collectives(path):
    run(2, save_alone, path)


def wrong_rank(rank, world, path):
    with open_run(path, 1 - rank, world) as r, pytest.raises(CheckpointException, match="of the run"):
        dcp.save({"w": whole(1)}, storage_writer=StorageWriter(r, step=1))


def wrong_world(rank, world, path):
    with open_run(path, rank, 3) as r, pytest.raises(CheckpointException, match="2 ranks, the run 3"):
        dcp.save({"w": whole(1)}, storage_writer=StorageWriter(r, step=1))


def test_errors_say_what_to_do(path):
    with pytest.raises(errors.Unavailable, match="moraine agent"):
        open_run(path, agent="/nonexistent/agent.sock")
    run(2, wrong_rank, path)
    run(2, wrong_world, path + "-2")
    with open_run(path) as r:
        with pytest.raises(errors.InvalidArgument, match="number of the step"):
            dcp.save({"w": whole(1)}, storage_writer=StorageWriter(r), checkpoint_id="/tmp/x")
        with pytest.raises(CheckpointException, match="which step"):
            dcp.save({"w": whole(1)}, storage_writer=StorageWriter(r))
        with pytest.raises(CheckpointException, match="complex128"):
            dcp.save({"w": torch.zeros(2, dtype=torch.complex128)}, storage_writer=StorageWriter(r, step=1))
        with pytest.raises(CheckpointException, match="no committed|not found|there is none|no checkpoint"):
            dcp.load({"w": whole(1)}, storage_reader=StorageReader(r))
        with pytest.raises(errors.InvalidArgument, match="only dense"):
            StorageWriter(r, step=1).stage({"w": torch.zeros(2).to_sparse()})
        with pytest.raises(errors.InvalidArgument, match="THREAD"):
            pickle.dumps(StorageWriter(r, step=1))  # as AsyncCheckpointerType.PROCESS does
        writer = StorageWriter(r, step=3)  # the refused save has ended step 1
        writer.stage({"w": whole(1)})
        with pytest.raises(errors.InvalidArgument, match="each save"):
            writer.stage({"w": whole(1)})
        writer.close()
        dcp.save({"w": whole(1)}, storage_writer=StorageWriter(r, step=2))  # the run is usable


def test_code_in_metadata_is_not_run(path):
    class Evil:
        def __reduce__(self):
            return (print, ("evil",))

    out = io.BytesIO()
    torch.save({"version": 1, "mapping": Evil()}, out)
    with open_run(path) as r:
        r.save_async({"w": np.zeros(3)}, step=1, blobs={"dcp-metadata": out.getvalue()}).wait("nvme", timeout=60)
        with pytest.raises(pickle.UnpicklingError):
            StorageReader(r, step=1).read_metadata()

