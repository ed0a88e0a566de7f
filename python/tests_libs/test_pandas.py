"""pandas and pyarrow."""

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pandas.testing import assert_frame_equal


def test_tables_are_written_and_read(fs, folder, agent, table):
    table.to_parquet(f"{folder}/new/t.parquet", row_group_size=3000)  # the directory is not there
    assert_frame_equal(pd.read_parquet(f"{folder}/new/t.parquet"), table)
    assert_frame_equal(pd.read_parquet(f"{folder}/new/t.parquet", storage_options=agent, columns=["x"]), table[["x"]])
    table.to_csv(f"{folder}/t.csv.gz", index=False, storage_options=agent)
    assert_frame_equal(pd.read_csv(f"{folder}/t.csv.gz"), table)
    table.to_json(f"{folder}/t.jsonl", orient="records", lines=True, double_precision=15)
    read = pd.concat(pd.read_json(f"{folder}/t.jsonl", orient="records", lines=True, chunksize=7000))
    assert_frame_equal(read, table)
    table.to_pickle(f"{folder}/t.pkl")
    assert_frame_equal(pd.read_pickle(f"{folder}/t.pkl"), table)
    assert len(fs.find(folder)) == 4


def test_errors_are_those_of_files(folder):
    with pytest.raises(FileNotFoundError):
        pd.read_parquet(f"{folder}/nothing.parquet")
    with pytest.raises(FileNotFoundError):
        pd.read_csv(f"{folder}/nothing.csv")


def test_nothing_is_appended_to_a_table(fs, folder, table):
    table.to_csv(f"{folder}/t.csv", index=False)
    with pytest.raises(NotImplementedError, match="write another file, or use a mount"):
        table.to_csv(f"{folder}/t.csv", index=False, header=False, mode="a")
    arrow = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs))
    with pytest.raises(NotImplementedError, match="write another file, or use a mount"):
        arrow.open_append_stream(f"{fs._strip_protocol(folder)}/t.csv")
    assert_frame_equal(pd.read_csv(f"{folder}/t.csv"), table)


def test_a_table_in_parts(fs, folder, table):
    """A directory for each value of a column: pandas makes the directories and lists them."""
    table.to_parquet(f"{folder}/t", partition_cols=["kind"])
    assert len(fs.glob(f"{folder}/t/kind=*/*.parquet")) == 3
    read = pd.read_parquet(f"{folder}/t", filters=[("kind", "==", "b")])
    want = table[table.kind == "b"].reset_index(drop=True)
    assert_frame_equal(read.astype({"kind": want.kind.dtype}).sort_values("id", ignore_index=True)[want.columns], want)


def test_a_dataset_of_pyarrow(fs, folder, table):
    data = pa.Table.from_pandas(table)
    at = fs._strip_protocol(folder)
    pa.dataset.write_dataset(data, f"{at}/set", format="parquet", filesystem=fs, max_rows_per_file=6000, max_rows_per_group=2000)
    assert len(fs.ls(f"{folder}/set")) == 4
    dataset = pa.dataset.dataset(f"{at}/set", format="parquet", filesystem=fs)
    assert dataset.count_rows() == len(table)
    assert dataset.to_table().sort_by("id").equals(data)
    few = dataset.to_table(columns=["id"], filter=pa.dataset.field("x") > 2)
    assert sorted(few["id"].to_pylist()) == table.id[table.x > 2].tolist()
    pa.dataset.write_dataset(data.slice(0, 10), f"{at}/set", format="parquet", filesystem=fs, existing_data_behavior="delete_matching")
    assert pa.dataset.dataset(f"{at}/set", format="parquet", filesystem=fs).count_rows() == 10
    parts = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs))
    kinds = parts.get_file_info([f"{at}/set", f"{at}/nothing"])
    assert [k.type for k in kinds] == [pa.fs.FileType.Directory, pa.fs.FileType.NotFound]
    parts.move(f"{at}/set", f"{at}/moved")
    parts.copy_file(f"{at}/moved/part-0.parquet", f"{at}/copy.parquet")
    assert pa.parquet.read_table(f"{at}/copy.parquet", filesystem=parts).num_rows == 10
    parts.delete_dir(f"{at}/moved")
    assert fs.find(folder) == [f"{at}/copy.parquet"]


def test_arrow_arrays_are_the_memory_of_the_agent(fs, folder):
    """The columns of a file in the format of Arrow's memory are read in place: nothing copies them."""
    want = pa.table({"x": np.arange(500_000)})
    with fs.open(f"{folder}/t.arrow", "wb") as f, pa.ipc.new_file(f, want.schema) as out:
        out.write_table(want)
    view = fs.view(f"{folder}/t.arrow")
    first = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    table = pa.ipc.open_file(pa.py_buffer(view)).read_all()
    address = table["x"].chunk(0).buffers()[1].address
    assert first <= address < first + len(view)
    del view
    assert table.equals(want)


def test_files_stay_readable_in_every_way_of_caching(fs, folder):
    want = np.random.default_rng(1).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()
    fs.pipe_file(f"{folder}/a", want)
    for kind in ("none", "bytes", "readahead", "mmap", "blockcache", "background", "first", "all"):
        with fs.open(f"{folder}/a", cache_type=kind, block_size=1 << 18) as f:
            f.seek(1_000_001)
            got = f.read(700_000), f.read(3), f.read()
        assert b"".join(got) == want[1_000_001:], kind
    with fsspec.open(f"simplecache::{folder}/a") as f:
        assert f.read() == want
    with fsspec.open(f"filecache::{folder}/a", filecache={"check_files": True}) as f:
        assert f.read() == want
