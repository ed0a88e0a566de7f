"""One rank of `moraine bench torch`: it saves and restores the same state in several ways.

It gets what it needs as JSON in its first argument. Each line of its input is a command, and it answers each
with a line. All ranks get the same commands.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from moraine import checkpoint
from moraine.torch import StorageReader, StorageWriter

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


class Rank:
    """The state of this rank, and its group. `mesh` is for the state, `saves` for saves beside it."""

    def __init__(self, config):
        self.rank, self.config = config["rank"], config
        dist.init_process_group("gloo", init_method=f"file://{config['store']}", rank=self.rank, world_size=config["world"],
                                timeout=timedelta(minutes=10))
        self.saves = dist.new_group()
        mesh = init_device_mesh("cpu", (config["world"],))
        self.state = {
            t["name"]: distribute_tensor(torch.zeros(t["shape"], dtype=DTYPES[t["dtype"]]), mesh, [Shard(0)], src_data_rank=None)
            for t in config["tensors"]
        }
        self.run = checkpoint.Run(config["run"], self.rank, config["world"], checkpoint.Launch("bench"), agent=config["agent"])

    def local(self):
        """Return the tensors of this rank by name."""
        return {name: t.to_local() for name, t in self.state.items()}

    def fill(self, seed, **_):
        """Make new values, the same for each way, and return their digest."""
        random = torch.Generator().manual_seed(seed * self.config["world"] + self.rank)
        for t in self.local().values():
            as_bytes(t).random_(generator=random)
        return {"digest": self.digest()}

    def clear(self, **_):
        """Make sure that a restore has something to do."""
        for t in self.local().values():
            as_bytes(t).zero_()
        return {}

    def digest(self):
        """Return a digest of the tensors of this rank."""
        digest = hashlib.sha256()
        for t in self.local().values():
            digest.update(as_bytes(t).numpy())
        return digest.hexdigest()

    def save(self, way, step, path, **_):
        """Save, and return three times of a clock that all ranks share: the begin, the end of the stall, durable."""
        dist.barrier()
        begin = time.monotonic()
        durable = SAVES[way](self, step, path)
        stalled = time.monotonic()
        if durable:
            with self.next_step():
                durable()
        return {"begin": begin, "stalled": stalled, "durable": time.monotonic()}

    @contextlib.contextmanager
    def next_step(self):
        """Change the tensors while a save that has let the training go on is written: it must not see that."""
        flip = [as_bytes(t).view(-1)[:1] for t in self.local().values() if t.numel()]
        for first in flip:
            first.bitwise_xor_(1)
        yield
        for first in flip:
            first.bitwise_xor_(1)

    def restore(self, way, step, path, agent=None, **_):
        """Restore, and return the two times and the digest of what is there then."""
        dist.barrier()
        begin = time.monotonic()
        from_node = RESTORES[way](self, step, path, agent)
        end = time.monotonic()
        return {"begin": begin, "durable": end, "digest": self.digest(), "from_node": from_node or 0}

    def remove(self, path, **_):
        """Remove the files of a checkpoint."""
        dist.barrier()
        if self.rank == 0 and path:
            shutil.rmtree(path)
        dist.barrier()
        return {}


def as_bytes(tensor):
    return tensor.view(torch.uint8)


def torch_save(rank, _, path):
    """Each rank writes a file of its own, and syncs it and its name."""
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/{rank.rank}.pt", "wb") as f:
        torch.save(rank.local(), f)
        f.flush()
        os.fsync(f.fileno())
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def torch_load(rank, _, path, __):
    loaded = torch.load(f"{path}/{rank.rank}.pt", weights_only=True)
    for name, t in rank.local().items():
        t.copy_(loaded[name])


def dcp_save(rank, _, path):
    dcp.save(rank.state, storage_writer=dcp.FileSystemWriter(path, sync_files=True))


def dcp_async_save(rank, _, path):
    saving = dcp.async_save(rank.state, storage_writer=dcp.FileSystemWriter(path, sync_files=True), process_group=rank.saves)
    return saving.result


def dcp_load(rank, _, path, __):
    dcp.load(rank.state, storage_reader=dcp.FileSystemReader(path))


def moraine_save(rank, step, _):
    writer = StorageWriter(rank.run, step=step)
    saving = dcp.async_save(rank.state, storage_writer=writer, async_stager=writer, process_group=rank.saves)

    def durable():
        saving.result()
        writer.saved.wait("nvme", timeout=600)

    return durable


def moraine_load(rank, step, _, agent):
    """Load from the cluster or the memory of the node: an agent that has no arenas of this run reads the cluster."""
    config = rank.config
    with checkpoint.Run(config["run"], rank.rank, config["world"], read_only=True, agent=agent) as run:
        reader = StorageReader(run, step=step)
        dcp.load(rank.state, storage_reader=reader)
        return reader.checkpoint.from_node


SAVES = {"torch": torch_save, "dcp": dcp_save, "dcp-async": dcp_async_save, "moraine": moraine_save}
RESTORES = {"torch": torch_load, "dcp": dcp_load, "moraine": moraine_load}


def main():
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    rank = Rank(json.loads(sys.argv[1]))
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(rank, command.pop("do"))(**command)
        except Exception as err:  # its text is all that the other side needs
            answer = {"error": f"{type(err).__name__}: {err}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    rank.run.close()


if __name__ == "__main__":
    main()
