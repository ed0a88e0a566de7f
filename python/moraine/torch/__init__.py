"""Checkpoints of torch.distributed.checkpoint (DCP) through the agent of the node.

    run = checkpoint.Run("/runs/llama", rank=rank, world=world)
    dcp.load(state, storage_reader=StorageReader(run))  # the step from which the launch continues
    dcp.save(state, storage_writer=StorageWriter(run, step=100))
    future = dcp.async_save(state, storage_writer=StorageWriter(run, step=200), process_group=saves)

`saves` is a group that nothing else uses: the messages of a save must not mix with those of the
training. Each rank's tensors are copied once, into memory that the agent owns: with `async_save` before it
returns. From the end of the save on the step survives all trainers. A step can be read by any
number of ranks, and as safetensors files from a mount.
"""

try:
    import torch.distributed.checkpoint  # noqa: F401
except ImportError as err:
    raise ImportError("moraine.torch needs PyTorch: pip install torch") from err

from moraine.torch._reader import StorageReader
from moraine.torch._writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
