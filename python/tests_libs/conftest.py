"""Tests of moraine.fsspec with the libraries that it is for, against a real agent and a real cluster.

MORAINE_AGENT names the agent's socket. integration.TestPythonLibraries starts it.
"""

import os
import uuid

import fsspec
import numpy as np
import pandas as pd
import pytest

# No test speaks to others. HF_HUB_OFFLINE would forbid each file that is not on the disk.
os.environ |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def fs():
    return fsspec.filesystem("moraine")


@pytest.fixture
def folder():
    return f"moraine:///libs-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def agent():
    """The settings with which a library makes the file system, where it takes them."""
    return {"agent": os.environ["MORAINE_AGENT"]}


@pytest.fixture
def table():
    """A table of several types."""
    rng = np.random.default_rng(1)
    n = 20_000
    return pd.DataFrame({
        "id": np.arange(n), "x": rng.standard_normal(n), "kind": np.array(["a", "b", "c"])[rng.integers(0, 3, n)],
        "text": [f"line {i} of {n}" for i in range(n)],
    })
