"""Runs a function as the ranks of a process group, each in a process of its own."""

import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from moraine import checkpoint


def run(world, function, *args):
    """Call `function(rank, world, *args)` on each rank, with gloo between them."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (function, world, f"file://{folder}/store", args), nprocs=world, start_method="fork")


def _rank(rank, function, world, store, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    try:
        function(rank, world, *args)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        dist.destroy_process_group()


def open_run(path, rank=0, world=1, launch="one", **kwargs):
    return checkpoint.Run(path, rank=rank, world=world, launch=checkpoint.Launch(launch), **kwargs)


def agent():
    return os.environ["MORAINE_AGENT"]
