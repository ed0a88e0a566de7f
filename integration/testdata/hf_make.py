"""Makes a sharded directory as save_pretrained does, with the safetensors package."""

import json
import sys

import numpy
from safetensors.numpy import save_file

directory, seed = sys.argv[1], int(sys.argv[2])
rng = numpy.random.default_rng(seed)


def values(shape, dtype):
    return rng.integers(0, 256, size=(*shape, numpy.dtype(dtype).itemsize), dtype=numpy.uint8).view(dtype).reshape(shape)


shards = [
    {"model.embed_tokens.weight": values((5000, 384), "float16"), "model.step": values((), "int64")},
    {"model.norm.weight": values((384,), "float32"), "model.none": values((0, 3), "float32"),
     **{f"model.layers.{i}.mlp.down_proj.weight": values((97, 61), "float32") for i in range(40)}},
    {"lm_head.weight": values((5000, 384), "float16"), "mask": values((7, 5), "uint8")},
]
weight_map, total = {}, 0
for i, tensors in enumerate(shards):
    name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
    save_file(tensors, f"{directory}/{name}", metadata={"format": "pt", "made": "by hand"})
    weight_map.update({t: name for t in tensors})
    total += sum(t.nbytes for t in tensors.values())
with open(f"{directory}/model.safetensors.index.json", "w") as f:
    json.dump({"metadata": {"total_size": total, "total_parameters": 7}, "weight_map": weight_map}, f)
with open(f"{directory}/config.json", "w") as f:
    json.dump({"model_type": "llama"}, f)
