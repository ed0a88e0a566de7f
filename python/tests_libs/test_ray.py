"""Ray Data: its tasks are processes, which get the file system as a pickle."""

import pandas as pd
import pytest
import ray
from pandas.testing import assert_frame_equal


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    yield
    ray.shutdown()


def test_tables_are_read_and_written(fs, folder, table):
    for i in range(3):
        table[i::3].to_parquet(f"{folder}/p/{i}.parquet", index=False)
    data = ray.data.read_parquet(f"{folder}/p", filesystem=fs)
    assert data.count() == len(table)
    few = data.map_batches(lambda rows: rows[rows["x"] > 0], batch_format="pandas")
    few.write_parquet(f"{folder}/few", filesystem=fs)
    read = pd.read_parquet(f"{folder}/few").sort_values("id", ignore_index=True)
    assert_frame_equal(read, table[table.x > 0].reset_index(drop=True), check_dtype=False)


def test_other_files_are_read(fs, folder, table):
    table.to_csv(f"{folder}/t.csv", index=False)
    assert ray.data.read_csv(f"{folder}/t.csv", filesystem=fs).sum("id") == table.id.sum()
    fs.pipe({f"{folder}/b/{i}": bytes([i]) * 100_000 for i in range(5)})
    rows = ray.data.read_binary_files(f"{folder}/b", filesystem=fs, include_paths=True).take_all()
    assert sorted(r["bytes"][:1] for r in rows) == [bytes([i]) for i in range(5)]
