"""datasets, and the DataLoader of PyTorch over it."""

import json

import datasets
import pytest
import torch
from torch.utils.data import DataLoader


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")


def write(fs, folder, table):
    """Write a table as parquet in four files, and as lines of JSON in two."""
    for i in range(4):
        table[i::4].to_parquet(f"{folder}/p/{i}.parquet", index=False)
    for i in range(2):
        table[i::2].to_json(f"{folder}/j/{i}.jsonl", orient="records", lines=True)


@pytest.mark.parametrize("streaming", [False, True])
def test_files_are_loaded(fs, folder, agent, table, tmp_path, streaming):
    write(fs, folder, table)
    for kind, files in (
        ("parquet", f"{folder}/p/*.parquet"), ("parquet", {"train": [f"{folder}/p/{i}.parquet" for i in range(4)]}),
        ("json", f"{folder}/j/*.jsonl"),
    ):
        data = datasets.load_dataset(kind, data_files=files, split="train", streaming=streaming, storage_options=agent, cache_dir=str(tmp_path))
        assert sorted(row["id"] for row in data) == table.id.tolist(), (kind, files)
    with pytest.raises(FileNotFoundError):
        datasets.load_dataset("json", data_files=f"{folder}/nothing.jsonl", streaming=streaming, cache_dir=str(tmp_path))


def test_a_file_that_changes_is_loaded_again(fs, folder, tmp_path):
    """Without `use_etag` datasets keeps its copy of a file for ever, wherever it comes from."""
    for value in (1, 2):
        fs.pipe_file(f"{folder}/a.jsonl", json.dumps({"v": value}).encode())
        data = datasets.load_dataset(
            "json", data_files=f"{folder}/a.jsonl", split="train", cache_dir=str(tmp_path),
            download_config=datasets.DownloadConfig(use_etag=True),
        )
        assert data["v"][:] == [value]


def test_a_dataset_is_saved_and_loaded(fs, folder, agent, table):
    want = datasets.Dataset.from_pandas(table)
    want.save_to_disk(f"{folder}/d", storage_options=agent, num_shards=3, num_proc=2)  # processes write, too
    got = datasets.load_from_disk(f"{folder}/d", storage_options=agent)
    assert got.to_pandas().equals(table)
    both = datasets.DatasetDict({"train": want, "test": want.select(range(10))})
    both.save_to_disk(f"{folder}/both", storage_options=agent)
    assert datasets.load_from_disk(f"{folder}/both", storage_options=agent)["test"].num_rows == 10
    want.to_parquet(f"{folder}/t.parquet", storage_options=agent)
    assert datasets.Dataset.from_parquet(f"{folder}/t.parquet").num_rows == len(table)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_stream_shards(fs, folder, agent, table, start):
    write(fs, folder, table)
    data = datasets.load_dataset("parquet", data_files=f"{folder}/p/*.parquet", split="train", streaming=True, storage_options=agent)
    next(iter(data))  # the connections of this process are open
    loader = DataLoader(data.select_columns(["id"]), batch_size=500, num_workers=2, multiprocessing_context=start)
    assert torch.cat([batch["id"] for batch in loader]).sort().values.tolist() == table.id.tolist()


class Files(torch.utils.data.Dataset):
    """Rows of a file that is open in the parent, and goes to the workers as it is."""

    def __init__(self, f, rows, size):
        self.f, self.rows, self.size = f, rows, size

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        self.f.seek(i * self.size)
        return torch.frombuffer(bytearray(self.f.read(self.size)), dtype=torch.uint8)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_share_an_open_file(fs, folder, start):
    want = torch.arange(64 * 10_000).to(torch.uint8).view(64, 10_000)
    fs.pipe_file(f"{folder}/rows", want.numpy().tobytes())
    with fs.open(f"{folder}/rows", block_size=1 << 14) as f:
        f.read(10)
        loader = DataLoader(Files(f, 64, 10_000), batch_size=8, num_workers=2, multiprocessing_context=start)
        for _ in range(2):
            assert torch.equal(torch.cat(list(loader)), want)
