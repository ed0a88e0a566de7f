"""Compares two sharded directories as a program of Hugging Face's libraries reads them: through the
index, with the safetensors package. Prints how many tensors are the same, and the metadata of the
first file of the second directory."""

import json
import sys

from safetensors import safe_open


def tensors(directory):
    """Yields each tensor with its name and the file that the index names."""
    with open(f"{directory}/model.safetensors.index.json") as f:
        index = json.load(f)
    for name, file in sorted(index["weight_map"].items()):
        with safe_open(f"{directory}/{file}", "numpy") as shard:
            yield name, shard.get_tensor(name), shard.metadata()
    total = sum(t.nbytes for t in read(directory, index))
    assert index["metadata"]["total_size"] == total, (index["metadata"], total)


def read(directory, index):
    for name, file in index["weight_map"].items():
        with safe_open(f"{directory}/{file}", "numpy") as shard:
            yield shard.get_tensor(name)


a, b = list(tensors(sys.argv[1])), list(tensors(sys.argv[2]))
assert [x[0] for x in a] == [x[0] for x in b], "the names differ"
for (name, x, _), (_, y, _) in zip(a, b):
    assert x.dtype == y.dtype and x.shape == y.shape, f"{name}: {x.dtype} {x.shape}, {y.dtype} {y.shape}"
    assert x.tobytes() == y.tobytes(), f"{name}: the bytes differ"
print(json.dumps({"tensors": len(b), "metadata": b[0][2]}))
