"""Moraine: checkpoints of training jobs, through the agent of the node.

`moraine.checkpoint` saves and restores them, `moraine.torch` for torch.distributed.checkpoint. It speaks to `moraine agent`, which runs on each
training node, over a unix socket, and shares memory with it. docs/formats/agent.md describes the
protocol.
"""

from moraine import checkpoint
from moraine.errors import MoraineError

__all__ = ["MoraineError", "checkpoint"]
