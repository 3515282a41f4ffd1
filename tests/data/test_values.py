"""Values of other libraries as columns: the same data in, the same column out."""

from __future__ import annotations

import io

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from PIL import Image

from dcmh.data import Dataset, Images, Texts, Vectors
from dcmh.data.columns import Stored
from dcmh.data.values import as_column
from dcmh.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
WORDS = ["two dogs", None, "a boat", "a red boat"]
LISTS = X.tolist()


@pytest.mark.parametrize(
    "values",
    [
        LISTS,
        list(X),
        X,
        torch.from_numpy(X).requires_grad_(),
        pandas.DataFrame(X),
        pandas.Series(LISTS),
        polars.DataFrame(X),
        polars.Series(LISTS),
        polars.Series(X),
        pyarrow.array(LISTS),
        pyarrow.chunked_array([LISTS[:1], LISTS[1:]]),
        pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 3),
        pyarrow.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}),
    ],
    ids=lambda values: f"{type(values).__module__.partition('.')[0]}.{type(values).__name__}",
)
@pytest.mark.parametrize("kind", [None, "vector"])
def test_vectors(values, kind):
    column = as_column(values, kind)
    assert isinstance(column, Vectors)
    np.testing.assert_array_equal(column.values, X)


@pytest.mark.parametrize(
    "values",
    [
        WORDS,
        np.array(WORDS, object),
        pandas.Series(WORDS),
        pandas.Series([np.nan if word is None else word for word in WORDS], dtype=object),
        polars.Series(WORDS),
        pyarrow.array(WORDS),
        pyarrow.array(WORDS).dictionary_encode(),
    ],
)
@pytest.mark.parametrize("kind", [None, "text"])
def test_texts(values, kind):
    column = as_column(values, kind)
    assert isinstance(column, Texts)
    assert column.values == WORDS


def test_pictures():
    pixels = np.random.default_rng(0).integers(0, 255, (2, 6, 8, 3), np.uint8)
    channels_first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    pictures = [Image.fromarray(picture) for picture in pixels]
    for values in (list(pixels), pixels, channels_first, pictures, pandas.Series(pictures)):
        column = as_column(values)
        assert isinstance(column, Images)
        np.testing.assert_array_equal(np.asarray(column.source(1)), pixels[1])
    single = as_column(torch.from_numpy(pixels[0]), "image")
    assert len(single) == 1


def test_bytes_are_pictures():
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    for cell in (file.getvalue(), {"bytes": file.getvalue(), "path": None}):
        column = as_column([cell, None])
        assert isinstance(column, Images)
        assert isinstance(column.values[0], Stored)
        assert column.source(0) == file.getvalue()
        assert column.observed.tolist() == [True, False]


def test_paths_are_pictures_not_words(tmp_path):
    """They once became texts: a model then learned from the names of files."""
    (tmp_path / "photo").write_bytes(b"x")
    for paths in (["a.jpg", "sub/b.PNG"], [str(tmp_path / "photo"), "b.jpg"], [tmp_path / "photo", tmp_path / "c"]):
        data = Dataset.from_arrays(image=paths, text=["one", "two"])
        assert isinstance(data.image, Images)
        assert isinstance(data.text, Texts)
    assert isinstance(as_column(["see a.jpg", "no picture"]), Texts)
    assert isinstance(as_column(Texts(["a.jpg"])), Texts)


def test_labels_and_ids_of_other_libraries():
    for labels in (
        pandas.Series(["a", "b", "a", "c"]),
        pyarrow.array(["a", "b", "a", "c"]),
        [["a"], ["b"], ["a"], ["c"]],
    ):
        data = Dataset.from_arrays(x=X, labels=labels, ids=pandas.Series(["p", "q", "r", "s"]))
        assert data.label_names == ["a", "b", "c"]
        assert data.labels.argmax(axis=1).tolist() == [0, 1, 0, 2]
        assert data.ids == ["p", "q", "r", "s"]
    several = Dataset.from_arrays(x=X, labels=[["b", "a"], [], ["a"], ["a"]])
    assert several.labels.tolist() == [[1, 1], [0, 0], [1, 0], [1, 0]]


@pytest.mark.parametrize("values", [[[1, 2], [1, 2, 3]], [[1, 2], ["a", "b"]], [None, None], [object()]])
def test_what_is_refused(values):
    with pytest.raises(DataError):
        as_column(values, "vector")
