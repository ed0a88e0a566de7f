"""Tests of tensors in the memory of the agent."""

import torch
from test_dcp import path  # noqa: F401

from moraine import checkpoint


def test_tensors_are_saved_where_they_are(path):  # noqa: F811
    want = torch.arange(6000, dtype=torch.bfloat16).view(60, 100)
    with checkpoint.Run(path, launch=checkpoint.Launch("one")) as run:
        with run.allocate(1, {"b": ((60, 100), torch.bfloat16), "f": ((3, 4), torch.float32)}) as part:
            b = torch.frombuffer(part.memory("b"), dtype=torch.bfloat16).view(60, 100)
            torch.add(want, 0, out=b)
            torch.from_numpy(part["f"]).fill_(7)
            part.seal().wait("nvme", timeout=60)
        k = run.open()
        assert k.tensors() == {"b": ("BF16", (60, 100)), "f": ("F32", (3, 4))}
        got = {"b": torch.zeros(60, 100, dtype=torch.bfloat16), "f": torch.zeros(3, 4)}
        k.read_into(got)
        assert torch.equal(got["b"], want) and torch.equal(got["f"], torch.full((3, 4), 7.0))
