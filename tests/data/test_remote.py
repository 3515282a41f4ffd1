"""Data that fsspec reads: pictures, Parquet files and WebDataset shards give what the same files on a disk give."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import tarfile

import fsspec
import numpy as np
import pytest
from PIL import Image

import dcmh
from dcmh.errors import DataError, ImageError, MissingExtra


def png(shade):
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def bucket():
    """An object store in memory."""
    store = fsspec.filesystem("memory")
    yield store
    if store.exists("/bucket"):
        store.rm("/bucket", recursive=True)


def test_a_folder_of_pictures(bucket):
    for name, shade in (("b.png", 2), ("a/c.png", 3), ("a/readme.txt", 0)):
        bucket.pipe_file(f"/bucket/photos/{name}", png(shade))
    data = dcmh.load_dataset("memory://bucket/photos")
    assert (data.name, data.ids) == ("photos", ["a/c.png", "b.png"])
    assert data.image.source(0) == png(3)
    assert "a/c.png" in repr(data.image.values[0].key)
    bucket.rm_file("/bucket/photos/b.png")
    with pytest.raises(ImageError, match="cannot be fetched"):
        data.image.source(1)


def test_parquet_files(bucket, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = pa.table({"id": ["x", "y", "z"], "image": [png(1), png(2), png(3)], "text": ["a", "b", "c"]})
    parquet.write_table(table, tmp_path / "part.parquet", row_group_size=2)
    bucket.pipe_file("/bucket/table/part.parquet", (tmp_path / "part.parquet").read_bytes())
    for source in ("memory://bucket/table", "memory://bucket/table/part.parquet", tmp_path / "part.parquet"):
        data = dcmh.load_dataset(source)
        assert (data.ids, data.text.values) == (["x", "y", "z"], ["a", "b", "c"])
        assert [data.image.source(row) for row in range(3)] == [png(1), png(2), png(3)]


def test_web_dataset_shards(bucket, tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name, content in (("k.png", png(5)), ("k.txt", b"a boat")):
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    bucket.pipe_file("/bucket/shards/0.tar", (tmp_path / "0.tar").read_bytes())
    data = dcmh.load_dataset("memory://bucket/shards")
    assert (data.ids, data.text.values, data.image.source(0)) == (["0/k"], ["a boat"], png(5))


def _read(column):
    return [column.source(row) for row in range(len(column))]


def test_other_processes_open_the_files_themselves(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    pictures = [png(shade) * 200 for shade in range(6)]
    parquet.write_table(pa.table({"image": pictures, "text": list("abcdef")}), tmp_path / "t.parquet", row_group_size=2)
    column = dcmh.load_dataset(tmp_path / "t.parquet").image.take(np.array([5, 0, 3]))
    assert len(pickle.dumps(column)) < len(pictures[0]) / 10  # not the pictures
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read, (column,)) == [pictures[5], pictures[0], pictures[3]]


def test_what_cannot_be_read(bucket):
    with pytest.raises(DataError, match="has neither pictures nor tables"):
        dcmh.load_dataset("memory://bucket/nothing")
    with pytest.raises(DataError, match="Cannot read nosuch://x"):
        dcmh.load_dataset("nosuch://x")
    with pytest.raises(MissingExtra, match="needs another package"):
        dcmh.load_dataset("dropbox://x")
