"""dcmh train --encoder, then index, search and serve's picture path, with a small CLIP."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import QUICK
from PIL import Image

import dcmh
import small_encoders
from dcmh.inputs import encoders


@pytest.mark.parametrize("kind", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def test_train_index_search_with_an_encoder(cli, tmp_path, kind):
    folder = getattr(small_encoders, kind)(tmp_path / "towers")
    answer = cli("train", "toy", *QUICK, "--encoder", "transformers:towers")
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "toy.model" / "model.json").read_text())
    image, text = record["modalities"]["image"], record["modalities"]["text"]
    assert image["encoder"] == text["encoder"] == record["fine"]["encoder"]
    assert image["encoder"]["name"] == f"transformers:{folder.resolve()}"
    assert image["encoder"]["preprocessing"]["framing"] == {"clip": [32, 36, 3], "siglip": [32, -1, 3]}[kind]
    assert cli("index", "toy", "--model", "toy.model", "--out", "toy.dcmh").code == 0
    found = cli("search", "toy.dcmh", "a red square", "-k", 3, "--json")
    assert len(json.loads(found.out)["hits"]) == 3
    # A picture of the collection finds itself: the same vectors in bulk and alone.
    picture = dcmh.load_dataset("toy").image.values[17]
    Image.fromarray(np.asarray(picture)).save(tmp_path / "photo.png")
    alone = json.loads(cli("search", "toy.dcmh", "photo.png", "-k", 5, "--in", "image", "--json").out)["hits"]
    assert dcmh.load_dataset("toy").ids[17] in [hit["name"] for hit in alone if hit["distance"] <= 1]
    if kind == "clip":
        assert cli("export", "toy.model").code == 0
        assert (
            f"transformers:{folder.name}: ask the provider of its weights"
            in (tmp_path / "toy.model.export" / "README.md").read_text()
        )


def test_encoders_that_cannot_be_used(cli, tmp_path):
    missing = cli("train", "toy", "--encoder", "transformers:nowhere")
    assert missing.code == 1
    assert "The encoder transformers:nowhere has no folder: nowhere does not exist." in missing.err
    assert not (tmp_path / "toy.model").exists()
    other = cli("train", "toy", "--method", "cca", "--encoder", "transformers:nowhere")
    assert "--encoder: the method cca has no setting 'encoder'" in other.err
    paper = cli("train", "toy", "--recipe", "paper", "--encoder", "transformers:nowhere")
    assert "An encoder is not trained." in paper.err
    encoders._opened.cache_clear()
