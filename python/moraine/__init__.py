"""Moraine: checkpoints of training jobs, and files, through the agent of the node.

`moraine.checkpoint` saves and restores checkpoints, `moraine.torch` does it for
torch.distributed.checkpoint, and `moraine.fsspec` has the files of the cluster. All speak to
`moraine agent`, which runs on each training node, over a unix socket, and share memory with it.
docs/formats/agent.md describes the protocol.
"""

from moraine import checkpoint
from moraine.errors import MoraineError

__all__ = ["MoraineError", "checkpoint"]
