"""A training loop that can be killed at any moment, and goes on from its last checkpoint.

It trains a small sharded model on the CPU, one process for each rank:

    moraine agent --endpoint HOST --certs DIR --arena-memory 1GiB   # on each node, once
    MORAINE_LAUNCH=1 torchrun --nproc-per-node 2 train.py --run /runs/mlp

Each save copies the tensors once, into memory of the agent, while the loop stands still. The agent
writes them to the cluster while the loop goes on, also if this process is killed.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from moraine import checkpoint
from moraine.torch import StorageReader, StorageWriter


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True, help="directory of the run in the cluster")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(1)
    dist.init_process_group("gloo")
    saves = dist.new_group()  # saves run beside the training: its messages must not mix with theirs
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, args.width), nn.Tanh(), nn.Linear(args.width, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    with checkpoint.Run(args.run, rank=dist.get_rank(), world=dist.get_world_size()) as run:
        first = restore(run, model, optimizer)
        saving = None
        for step in range(first, args.steps + 1):
            loss = train_step(model, optimizer, step)
            say(step=step, loss=loss)
            if step % args.every == 0:
                if saving:
                    saving.result()  # an error of the save before
                state = state_of(model, optimizer, step)
                saving = dcp.async_save(state, storage_writer=StorageWriter(run, step=step), process_group=saves)
        if saving:
            saving.result()
    dist.destroy_process_group()


def state_of(model, optimizer, step):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step}


def restore(run, model, optimizer):
    """Load the last checkpoint, if there is one. Return the number of the next step."""
    last = run.restore()
    if last is None:
        return 1
    state = state_of(model, optimizer, 0)
    dcp.load(state, storage_reader=StorageReader(run, step=last.step))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    say(resumed=last.step, step=state["step"])
    return state["step"] + 1


def train_step(model, optimizer, step):
    """Train on the data of a step. They depend on its number only, so that each launch sees the same."""
    data = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    x = torch.randn(32, 16, generator=data)
    loss = (model(x) - x.sin().sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def say(**fields):
    """Print a line of JSON. Floats are exact."""
    print(json.dumps({"rank": dist.get_rank(), **fields}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
