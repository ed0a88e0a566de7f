"""Prints name, type, shape and SHA-256 of every tensor of a safetensors file, a JSON object a line."""

import hashlib
import json
import sys

import ml_dtypes  # noqa: F401  (gives numpy the type bfloat16)
from safetensors import safe_open

with safe_open(sys.argv[1], framework="numpy") as part:
    for name in part.keys():
        t = part.get_tensor(name)
        print(json.dumps({"name": name, "type": str(t.dtype), "shape": t.shape, "sha256": hashlib.sha256(t.tobytes()).hexdigest()}))
