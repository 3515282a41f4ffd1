"""An encoder without training, on a server: the collection keeps its model."""

from __future__ import annotations

import pytest

import dcmh
from dcmh.errors import ModelMismatch
from dcmh.inputs import encoders
from toy_photos import load


@pytest.fixture(scope="module", autouse=True)
def cheap_here():
    """The encoder's own features, not those that other modules have in their place."""


class Colours:
    size = 16

    def encode_images(self, pixels):
        return pixels.mean(axis=(1, 2)) + 1

    def encode_texts(self, texts):
        return [[1.0 + 9 * ("red" in text), 1.0 + 9 * ("green" in text), 1.0 + 9 * ("blue" in text)] for text in texts]


def test_a_collection_of_an_encoder(address, photos, monkeypatch):
    monkeypatch.setattr(encoders, "_registered", {})
    encoders.register("colours", Colours())
    encoders.register("others", Colours())
    data = load(photos)
    with dcmh.SearchIndex.build(None, data, address, encoder="colours") as index:
        fingerprint = index.fingerprint
    with dcmh.SearchIndex.build(None, data, address, encoder="colours") as index:
        assert index.fingerprint == fingerprint
        assert index.changes.unchanged == len(data)
        assert len(index.search(text="red", k=3)) == 3
    with pytest.raises(ModelMismatch, match="was built with the encoder colours") as raised:
        dcmh.SearchIndex.build(None, data, address, encoder="others")
    assert "--rebuild" in str(raised.value)
    with dcmh.SearchIndex.build(None, data, address, encoder="others", rebuild=True) as index:
        assert len(index) == len(data)
