"""Shards of webdataset in the cluster.

    import moraine.webdataset
    moraine.webdataset.register()
    webdataset.WebDataset("moraine:///data/train-{000000..000099}.tar")

webdataset opens URLs by a table of its own, and knows nothing of fsspec. A worker that is spawned has a
table of its own, too: give its DataLoader `worker_init_fn=moraine.webdataset.register`.
"""

from __future__ import annotations

from typing import Any, BinaryIO, cast

from moraine.fsspec import MoraineFileSystem

__all__ = ["gopen", "register"]


def register(*_: Any) -> None:
    """Make webdataset open `moraine://` in this process, also for shards that it writes."""
    from webdataset.gopen import gopen_schemes

    gopen_schemes["moraine"] = gopen


def gopen(url: str, mode: str = "rb", bufsize: int = 0, **settings: Any) -> BinaryIO:
    """Open a shard. `settings` are those of MoraineFileSystem, such as `agent`. Of `bufsize` nothing is used: it is small."""
    return cast(BinaryIO, MoraineFileSystem(**settings).open(url, mode))
