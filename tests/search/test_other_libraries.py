"""Encoding and searching give the same result for lists, NumPy, torch, pandas, polars and Arrow."""

from __future__ import annotations

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from PIL import Image

import dcmh
from dcmh.data import Dataset, Images

LIBRARIES = {
    "list": lambda values: values.tolist() if isinstance(values, np.ndarray) else list(values),
    "numpy": np.asarray,
    "torch": lambda values: torch.as_tensor(values) if isinstance(values, np.ndarray) else None,
    "pandas": lambda values: pandas.Series(list(values)),
    "polars": lambda values: polars.Series(values),
    "arrow": lambda values: pyarrow.array(list(values)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of texts and vectors, their data, and its index."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, (80, 5))
    labels[labels.sum(axis=1) == 0, 0] = 1
    words = np.array(["dog", "boat", "tree", "house", "snow"])
    texts = [" ".join(words[row == 1]) for row in labels]
    sound = (labels @ generator.standard_normal((5, 6)) + 0.1 * generator.standard_normal((80, 6))).astype(np.float32)
    data = Dataset.from_arrays(text=texts, sound=sound, labels=labels)
    model = dcmh.methods.get("ridge")(bits=16).fit(data)
    with dcmh.SearchIndex.build(model, data, tmp_path_factory.mktemp("index") / "i.dcmh") as index:
        yield data, model, index


@pytest.mark.parametrize("library", LIBRARIES)
def test_codes_are_the_same(made, library):
    data, model, _ = made
    convert = LIBRARIES[library]
    vectors = convert(data.sound.values)
    np.testing.assert_array_equal(model.encode(sound=vectors), model.encode(sound=data.sound))
    if library != "torch":  # which has no texts
        texts = convert(data.text.values)
        np.testing.assert_array_equal(model.encode(text=texts), model.encode(text=data.text))
        joint = model.encode(text=texts, sound=vectors)
        np.testing.assert_array_equal(joint, model.encode(text=data.text, sound=data.sound))


@pytest.mark.parametrize("library", LIBRARIES)
def test_hits_are_the_same(made, library):
    data, _, index = made
    for row in range(3):
        expected = [hit.id for hit in index.search(vector=data.sound.values[row])]
        assert [hit.id for hit in index.search(vector=LIBRARIES[library](data.sound.values[row]))] == expected
    if library != "torch":
        words = LIBRARIES[library](data.text.values[:3])
        for row in range(3):
            expected = [hit.id for hit in index.search(data.text.values[row])]
            assert [hit.id for hit in index.search(words[row])] == expected


def test_frames_of_vectors_are_encoded(made):
    data, model, _ = made
    expected = model.encode(sound=data.sound)
    for frame in (pandas.DataFrame(data.sound.values), polars.DataFrame(data.sound.values)):
        np.testing.assert_array_equal(model.encode(sound=frame), expected)


def test_pictures_are_the_same(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), np.uint8)
    data = Dataset.from_arrays(image=Images(list(pixels)), text=["a dog", "a boat", "a dog"], labels=["d", "b", "d"])

    def features(_, column):
        return np.stack([np.asarray(column.source(row), np.float32).ravel() for row in range(len(column))])

    monkeypatch.setattr("dcmh.inputs.views.FeatureView.__call__", features)
    monkeypatch.setattr("dcmh.inputs.views.FeatureView.width", 192)
    model = dcmh.methods.get("ridge")(bits=8).fit(data, fine=0)
    expected = model.encode(image=data.image)
    pictures = [Image.fromarray(picture) for picture in pixels]
    channels_first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    for values in (list(pixels), pixels, torch.from_numpy(pixels), channels_first, pictures, pandas.Series(pictures)):
        np.testing.assert_array_equal(model.encode(image=values), expected)


def test_hits_show_as_tables(made):
    _, _, index = made
    hits = index.search("dog", k=3)
    assert repr(hits).startswith("3 hits for 'dog' among 80 items (")
    assert len(repr(hits).splitlines()) == 5
    html = hits._repr_html_()
    assert html.count("<tr>") == 4
    assert hits[0].name in html
    frame = hits.to_frame()
    assert frame["id"].tolist() == [hit.id for hit in hits]
    assert {"distance", "text", "precision"} <= set(frame.columns)
    assert len(repr(index.search("dog", k=40)).splitlines()) == 23  # cut, as it says
