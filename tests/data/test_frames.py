"""Tables of other libraries and formats: the same rows from each give the same data set."""

from __future__ import annotations

import io
import json
import tarfile
import weakref
from types import SimpleNamespace

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from PIL import Image

from dcmh.data import frames as frames_module
from dcmh.data import load_dataset
from dcmh.errors import DataError, ImageError, MissingExtra, ParameterError
from dcmh.inputs.images import decode

N = 5
TEXTS = ["two dogs", "a boat", None, "a cat", "dogs and cats"]
LABELS = [["dog"], ["boat"], [], ["cat"], ["cat", "dog"]]
PIXELS = np.random.default_rng(0).integers(0, 255, (N, 8, 8, 3), np.uint8)
VECTORS = np.random.default_rng(1).random((N, 4), np.float32)


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


COLUMNS = {"image": [png(pixels) for pixels in PIXELS], "text": TEXTS, "labels": LABELS, "year": list(range(N))}


def write_tar(file, columns=COLUMNS):
    with tarfile.open(file, "w") as tar:
        for row in range(N):
            files = {"jpg": columns["image"][row], "txt": (TEXTS[row] or "").encode()}
            files["json"] = json.dumps({"labels": LABELS[row], "year": row, "exif": {}}).encode()
            for suffix, content in files.items():
                member = tarfile.TarInfo(f"shard/{row:05}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


class HuggingFace:
    """The part of a Hugging Face data set that is used; the real one was tried by hand."""

    def __init__(self, table):
        self.table = table
        self.column_names = table.column_names
        self.features = {"labels": SimpleNamespace(feature=SimpleNamespace(names=["boat", "cat", "dog"]))}

    def with_format(self, name):
        assert name == "arrow"
        return self

    def iter(self, size):
        return iter([self.table.slice(0, 2), self.table.slice(2)])

    def __len__(self):
        return len(self.table)

    def __getitem__(self, rows):
        return self.table.slice(rows.start, 1)


def hugging_face():
    images = [{"bytes": image, "path": None} for image in COLUMNS["image"]]
    names = ["boat", "cat", "dog"]
    numbers = [[names.index(label) for label in labels] for labels in LABELS]
    return HuggingFace(pyarrow.table({**COLUMNS, "image": images, "labels": numbers}))


@pytest.fixture(
    params=["dict", "pandas", "polars", "arrow", "huggingface", "parquet", "feather", "tar", "folder of shards"]
)
def source(request, tmp_path):
    table = pyarrow.table(COLUMNS)
    match request.param:
        case "dict":
            return COLUMNS
        case "pandas":
            return pandas.DataFrame(COLUMNS)
        case "polars":
            return polars.DataFrame(COLUMNS)
        case "arrow":
            return table
        case "huggingface":
            return hugging_face()
        case "parquet":
            pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
            return tmp_path / "a.parquet"
        case "feather":
            pyarrow.feather.write_feather(table, tmp_path / "a.feather", compression="uncompressed")
            return tmp_path / "a.feather"
        case "tar":
            write_tar(tmp_path / "a.tar")
            return tmp_path / "a.tar"
    pyarrow.parquet.write_table(table.slice(0, 3), tmp_path / "train-0.parquet")
    pyarrow.parquet.write_table(table.slice(3), tmp_path / "train-1.parquet")
    return tmp_path


def test_the_same_rows_from_each(source):
    data = load_dataset(source, keep_partial=True)
    assert data.text.values == TEXTS
    assert data.label_names == ["boat", "cat", "dog"]
    assert [[data.label_names[i] for i in np.flatnonzero(row)] for row in data.labels] == LABELS
    for row in reversed(range(N)):
        np.testing.assert_array_equal(decode(data.image.source(row), 8), PIXELS[row])
    assert len(load_dataset(source)) == N - 1  # one has no text


def test_samples_of_a_tar_are_told_apart_by_their_folders(tmp_path):
    """As in WebDataset: a sample has the whole path up to the first dot of the file's name."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for row, name in enumerate(["./cats/0", "./dogs/0", "dogs.v2/0", "1"]):
            for suffix, content in (("png", COLUMNS["image"][row]), ("txt", f"number {row}".encode())):
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    data = load_dataset(tmp_path / "a.tar")
    assert data.ids == ["a/cats/0", "a/dogs/0", "a/dogs.v2/0", "a/1"]
    assert list(data.text.values) == [f"number {row}" for row in range(4)]
    assert [data.image.source(row) for row in range(4)] == COLUMNS["image"][:4]


@pytest.mark.parametrize("order", [("jpg", "seg.png", "txt", "seg.txt"), ("seg.txt", "txt", "seg.png", "jpg")])
def test_the_picture_of_a_sample_is_the_one_with_nothing_but_its_suffix(tmp_path, order):
    contents = dict(zip(("jpg", "seg.png"), COLUMNS["image"][:2], strict=True)) | {"txt": b"a dog", "seg.txt": b"[1"}
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for suffix in order:
            member = tarfile.TarInfo(f"0.{suffix}")
            member.size = len(contents[suffix])
            tar.addfile(member, io.BytesIO(contents[suffix]))
    data = load_dataset(tmp_path / "a.tar")
    assert data.image.source(0) == contents["jpg"]
    assert list(data.text.values) == ["a dog"]


@pytest.mark.parametrize("make", [dict, pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_vectors_and_classes(make, tmp_path):
    columns = {"image": list(VECTORS), "text": TEXTS, "label": [0, 1, 0, 1, 0]}
    data = load_dataset(make(columns), keep_partial=True)
    np.testing.assert_array_equal(data.image.values, VECTORS)
    assert data.labels.argmax(axis=1).tolist() == columns["label"]
    assert data.ids == list("01234")


def test_parquet_keeps_vectors_in_one_array(tmp_path, monkeypatch):
    monkeypatch.setattr(frames_module, "BATCH", 2)
    table = pyarrow.table({"image": list(VECTORS.astype(np.float64)), "text": TEXTS})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    whole = load_dataset(tmp_path / "a.parquet", keep_partial=True)
    assert whole.image.values.dtype == np.float32
    np.testing.assert_array_equal(whole.image.values, VECTORS)
    some = load_dataset(tmp_path / "a.parquet")
    np.testing.assert_array_equal(some.image.values, VECTORS[[0, 1, 3, 4]])


def test_paths_are_relative_to_the_file_and_merged(tmp_path):
    Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    frame = pandas.DataFrame({"image": ["a.png", "a.png", "gone.png"], "text": ["one", "two", "three"]})
    frame.to_parquet(tmp_path / "table.parquet")
    for data in (load_dataset(tmp_path / "table.parquet"), load_dataset(frame, root=tmp_path)):
        assert data.ids == ["a.png"]
        assert data.text.values == ["one\ntwo"]
        assert data.skipped == [("gone.png", "does not exist")]


def test_modalities_by_name():
    frame = pandas.DataFrame(
        {"photo": [Image.fromarray(pixels) for pixels in PIXELS], "title": TEXTS, "sound": list(VECTORS)}
    )
    data = load_dataset(frame, modalities="photo,title,sound", keep_partial=True)
    assert {name: column.kind for name, column in data.columns.items()} == {
        "photo": "image",
        "title": "text",
        "sound": "vector",
    }
    data = load_dataset(frame, columns=("photo", "title"))
    assert data.modalities == ("image", "text")
    with pytest.raises(
        DataError, match=r'has columns .photo, title, sound.; expected .image, text.. Name those .*modalities="'
    ):
        load_dataset(frame)


def test_names_of_classes_in_a_parquet_file_of_hugging_face(tmp_path):
    about = {
        "info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}}
    }
    table = pyarrow.table({"image": list(VECTORS), "text": list("abcde"), "label": [0, 1, 1, 0, -1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    data = load_dataset(tmp_path / "a.parquet")
    assert data.label_names == ["cat", "dog"]
    assert data.labels.tolist() == [[1, 0], [0, 1], [0, 1], [1, 0], [0, 0]]


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="Cannot read data from a int"):
        load_dataset(3)
    with pytest.raises(DataError, match=r"holds several tables: train, test. Give one: \['train'\]"):
        load_dataset({"train": hugging_face(), "test": hugging_face()})
    with pytest.raises(DataError, match="differ in length"):
        load_dataset({"image": [1], "text": ["a", "b"]})
    with pytest.raises(DataError, match="has no rows"):
        load_dataset(pandas.DataFrame({"image": [], "text": []}))
    with pytest.raises(ParameterError, match="The DataFrame has no option 'size'"):
        load_dataset(pandas.DataFrame(COLUMNS), size=3)
    for name in ("a.parquet", "a.arrow", "a.tar"):
        (tmp_path / name).write_bytes(b"not what it says" * 100)
        with pytest.raises(DataError, match="cannot be read"):
            load_dataset(tmp_path / name)
    (tmp_path / "empty.tar").write_bytes(bytes(10_240))
    with pytest.raises(DataError, match="holds no samples"):
        load_dataset(tmp_path / "empty.tar")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"dcmh\[tables\]"):
        load_dataset(tmp_path / "a.parquet")
    assert len(load_dataset(polars.DataFrame(COLUMNS))) == N - 1  # which needs no pyarrow


def test_a_picture_that_is_gone_is_an_image_error(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table(COLUMNS), tmp_path / "a.parquet")
    data = load_dataset(tmp_path / "a.parquet")
    table = pyarrow.table({"image": [None] * N}, schema=pyarrow.schema([("image", pyarrow.binary())]))
    store = data.image.values[0].store
    store._groups[0] = table.column(0)
    with pytest.raises(ImageError, match="no bytes"):
        data.image.source(0)


def test_a_row_group_makes_room_before_another_is_read(tmp_path, monkeypatch):
    table = pyarrow.table({"image": [bytes([number]) for number in range(20)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)

    class Group(list):
        """A row group of one byte per picture."""

        __hash__ = object.__hash__

    groups = weakref.WeakSet()

    def read(self, number):
        assert len(groups) < frames_module.ROW_GROUPS
        group = Group(pyarrow.scalar(bytes([row])) for row in range(4 * number, 4 * number + 4))
        groups.add(group)
        return group

    monkeypatch.setattr(frames_module._ParquetRows, "_read", read)
    rows = frames_module._ParquetRows(tmp_path / "a.parquet", "image")
    assert b"".join(rows.read(key) for key in range(20)) == bytes(range(20))
    assert len(groups) == frames_module.ROW_GROUPS
