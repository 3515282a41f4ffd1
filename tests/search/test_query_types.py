"""Queries of the wrong type, and .npy files that are damaged: errors of dcmh."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dcmh
from dcmh.errors import DCMHError, QueryError
from dcmh.search import SearchIndex

FIXTURE = Path(__file__).parents[1] / "fixtures" / "format-1" / "index.dcmh"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed") / "index.dcmh"
    shutil.copytree(FIXTURE, folder)
    with SearchIndex.open(folder) as index:
        yield index


@pytest.mark.parametrize("text", [5, 1.5, True, b"sunny", ["sunny"], ("a",), {"a": 1}, object(), np.zeros(3)])
def test_texts_of_other_types(opened, text):
    with pytest.raises(QueryError, match="must be a text, not"):
        opened.search(text=text)


@pytest.mark.parametrize(
    "vector", ["none.npy", "abc", [["a"]], object(), [], {}, [1, [2, 3]], "a\0b", [None], [np.nan] * 6]
)
def test_vectors_that_are_none(opened, vector):
    with pytest.raises(DCMHError):
        opened.search(vector=vector)


def test_a_damaged_npy(opened, tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4', ")
    with pytest.raises(QueryError, match=r"Cannot read the vector .*a\.npy: its header cannot be read"):
        opened.search(vector=tmp_path / "a.npy")


def test_a_pil_image(index, model):
    path = index.path_of(index.item(1))
    with Image.open(path) as picture:
        by_picture = index.search(image=picture, k=3)
        codes = dcmh.load(model).encode(image=picture)
        data = dcmh.Dataset.from_arrays(image=[picture, None], text=["a", "b"])
    assert [hit.id for hit in by_picture] == [hit.id for hit in index.search(image=path, k=3)]
    assert by_picture[0].distance == 0
    np.testing.assert_array_equal(codes, dcmh.load(model).encode(image=[path]))
    assert data["image"].observed.tolist() == [True, False]


@pytest.mark.parametrize("image", [5, 1.5, ["a.jpg"], object(), {"a": 1}])
def test_pictures_of_other_types(index, image):
    with pytest.raises(QueryError, match="The picture to search for is of type"):
        index.search(image=image)


@pytest.mark.parametrize(
    "image", [b"", b"abc", np.zeros(3), np.zeros((2, 2, 7)), "a\0b.jpg", "none.jpg", bytearray(b"abc")]
)
def test_pictures_that_are_none(index, image):
    with pytest.raises(DCMHError):
        index.search(image=image)


@pytest.mark.parametrize("version", [0, -1, True, 1.5, "1"])
def test_format_numbers(tmp_path, version):
    import json

    shutil.copytree(FIXTURE, tmp_path / "index.dcmh")
    header = tmp_path / "index.dcmh" / "index.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"format": version}))
    with pytest.raises(DCMHError, match="is damaged: it says that it has format"):
        SearchIndex.open(tmp_path / "index.dcmh")
