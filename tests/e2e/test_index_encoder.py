"""dcmh index --encoder: an encoder of pictures and texts, without captions, labels or training."""

from __future__ import annotations

import json
import os
import tempfile
import zlib

import numpy as np
import pytest
from PIL import Image

import dcmh
import small_encoders
from dcmh.errors import DataError, ModelMismatch, ParameterError
from dcmh.inputs import encoders
from dcmh.methods import from_encoder

COLOURS = ("red", "green", "blue")


class TwoSides:
    """Pictures of a colour are where its word is, but all pictures lie apart from all texts, as those of CLIP do."""

    size = 16
    picture_side, text_side = 3 * np.random.default_rng(1).standard_normal((2, 32))

    def encode_images(self, pixels):
        colours = pixels.mean(axis=(1, 2)).argmax(axis=1)
        noise = 0.01 * pixels.mean(axis=(1, 2))[:, :1] / 255
        return np.stack([self.word(COLOURS[colour]) for colour in colours]) + self.picture_side + noise

    def encode_texts(self, texts):
        return np.stack(
            [np.mean([self.word(word) for word in text.split()], axis=0) + self.text_side for text in texts]
        )

    def word(self, word):
        vector = np.random.default_rng(zlib.crc32(word.encode())).standard_normal(32)
        return vector / np.linalg.norm(vector)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    """Encoders are forgotten afterwards, and so are their vectors."""
    monkeypatch.setenv("DCMH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(encoders, "_registered", {})
    yield
    encoders._opened.cache_clear()


@pytest.fixture
def squares(tmp_path):
    """Thirty pictures, ten of each colour, and a file that is none; no captions."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for row in range(30):
        pixels = np.full((40, 48, 3), 40, np.uint8)
        pixels[..., row % 3] = 150 + row
        Image.fromarray(pixels).save(folder / f"{COLOURS[row % 3]}{row}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


@pytest.mark.parametrize("kind", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def test_index_again_search_and_upgrade(cli, squares, tmp_path, kind):
    folder = getattr(small_encoders, kind)(tmp_path / "towers")
    other = small_encoders.clip(tmp_path / "other", seed=1)
    command = ("index", "photos", "--encoder", "transformers:towers")
    first = cli(*command)
    assert (first.code, first.out) == (0, "30 new, 0 changed, 0 gone, 0 unchanged.\n"), first.err
    assert "The encoder saw only 30 pictures." in first.err
    assert "with the encoder transformers:towers (semantic, 64 bits)" in first.err
    assert "skipped broken.png" in first.err
    about = json.loads(cli("info", "photos.dcmh", "--json").out)
    assert about["encoder"] == f"transformers:{folder.resolve()}"
    assert about["trained_on"]["name"] == "photos"
    assert (about["trained_on"]["items"], about["trained_on"]["common_words"]) == (30, from_encoder.WORDS)
    hits = json.loads(cli("search", "photos.dcmh", "a red square", "-k", 3, "--json").out)
    assert len(hits["hits"]) == 3
    assert not hits["unlikely"]
    own = json.loads(cli("search", "photos.dcmh", squares / "red3.png", "-k", 3, "--json").out)["hits"]
    assert all(hit["name"].startswith("red") for hit in own)  # their vectors are nearly the same
    # The same command again, and without the encoder, take the index's own model.
    for again in (command, ("index", "photos")):
        answer = cli(*again)
        assert (answer.code, answer.out) == (0, "0 new, 0 changed, 0 gone, 30 unchanged.\n")
        assert "saw only" not in answer.err
    assert json.loads(cli("info", "photos.dcmh", "--json").out)["model"] == about["model"]
    refused = cli("index", "photos", "--encoder", "transformers:other")
    assert refused.code == 1
    assert f"photos.dcmh was built with the encoder transformers:{folder.resolve()}, not with" in refused.err
    assert "--upgrade" in refused.last
    assert "--rebuild" in refused.last
    upgraded = cli("index", "photos", "--encoder", "transformers:other", "--upgrade")
    assert (upgraded.code, upgraded.out) == (0, "30 encoded again, 0 new, 0 changed, 0 gone, 0 unchanged.\n")
    assert json.loads(cli("info", "photos.dcmh", "--json").out)["encoder"] == f"transformers:{other.resolve()}"


def test_words_find_pictures_across_the_gap(cli, squares):
    encoders.register("sides", TwoSides())
    encoder = encoders.open_encoder("sides")
    red = np.full((1, 16, 16, 3), (200, 40, 40), np.uint8)
    assert (encoder.encode_images(red) @ encoder.encode_texts(["red"]).T).item() < 0.2  # the encoder's own cosine
    assert cli("index", squares, "--encoder", "sides").code == 0
    for colour in COLOURS:
        for words in (colour, f"a photo of {colour}"):
            hits = json.loads(cli("search", "photos.dcmh", words, "-k", 10, "--json").out)["hits"]
            assert {hit["name"].strip("0123456789.png") for hit in hits} == {colour.strip("png")}
            assert min(hit["fine"] for hit in hits) > 0.4


def test_workers_and_plan(cli, squares, tmp_path):
    small_encoders.onnx_towers(tmp_path / "both")
    command = ("index", "photos", "--encoder", "onnx:both")
    planned = cli(*command, "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert json.loads(planned.out)["items"] == 31
    assert not (tmp_path / "photos.dcmh").exists()
    assert cli(*command, "--out", "one.dcmh").code == 0
    answer = cli(*command, "--workers", "2")
    assert (answer.code, answer.out) == (0, "30 new, 0 changed, 0 gone, 0 unchanged.\n"), answer.err
    with dcmh.SearchIndex.open("one.dcmh") as one, dcmh.SearchIndex.open("photos.dcmh") as two:
        assert one.fingerprint == two.fingerprint
        assert one.codes_of(1) == two.codes_of(1)


def test_captions_of_the_collection_count_too(tmp_path, squares):
    encoders.register("sides", TwoSides())
    data = dcmh.load_dataset(squares, keep_partial=True)
    texts = [f"a {name.strip('0123456789.png')} square" if row % 2 else None for row, name in enumerate(data.ids)]
    captioned = dcmh.Dataset.from_arrays(photo=data.image, caption=dcmh.Texts(texts), ids=data.ids, name="squares")
    with dcmh.SearchIndex.build(None, captioned, tmp_path / "index", encoder="sides") as index:
        assert set(index.modalities) == {"photo", "caption"}
        assert index.modalities["caption"] == sum(text is not None for text in texts)
        assert index.search(text="blue", k=1)[0].name.startswith("blue")
    model = from_encoder.learn("sides", data, pictures=9)
    assert model.trained_on_["items"] <= 9
    assert model.trained_on_["name"] == "photos"


def test_what_is_refused(cli, squares, tmp_path, toy_model):
    small_encoders.onnx_towers(tmp_path / "both")
    small_encoders.onnx_towers(tmp_path / "texts", pictures=False)
    small_encoders.onnx_towers(tmp_path / "pictures", texts=False)
    for options in (("--model", toy_model), ("--text-encoder", "minilm"), ("--quality", "good")):
        answer = cli("index", "photos", "--encoder", "onnx:both", *options)
        assert (answer.code, answer.last[: len(options[0])]) == (1, options[0])
        assert "dcmh train DATA --encoder" in answer.last
    for one, takes in (
        ("onnx:texts", "texts, not pictures"),
        ("onnx:pictures", "pictures, not texts"),
        ("use-multilingual", "texts"),
    ):
        answer = cli("index", "photos", "--encoder", one)
        assert answer.code == 1
        assert f"The encoder {one} takes {takes}" in answer.last
        assert "dcmh train DATA --encoder" in answer.last
    assert "nowhere does not exist" in cli("index", "photos", "--encoder", "onnx:nowhere").last
    (tmp_path / "few").mkdir()
    (squares / "red0.png").rename(tmp_path / "few" / "red0.png")
    few = cli("index", "few", "--encoder", "onnx:both")
    assert few.code == 1
    assert "few has 1 readable picture, and" in few.last
    assert sorted(path.name for path in tmp_path.glob("*.dcmh")) == []
    # An index of another model, and of the same encoder with other weights.
    assert cli("index", "toy", "--model", toy_model, "--out", "toy.dcmh").code == 0
    trained = cli("index", "toy", "--encoder", "onnx:both", "--out", "toy.dcmh")
    assert (
        "toy.dcmh was built with another model (dcmh, learned from toy), not with the encoder onnx:both."
        in trained.last
    )
    data = dcmh.load_dataset(squares, keep_partial=True)
    with pytest.raises(ParameterError, match="Both a model and an encoder"):
        dcmh.SearchIndex.build(toy_model, data, tmp_path / "index", encoder="onnx:both")
    with pytest.raises(DataError, match="no readable pictures"):
        dcmh.SearchIndex.build(None, dcmh.Dataset.from_arrays(text=["a", "b"]), tmp_path / "index", encoder="onnx:both")
    encoders.register("sides", TwoSides())
    dcmh.SearchIndex.build(None, data, tmp_path / "index", encoder="sides").close()
    encoders.register("sides", type("Newer", (TwoSides,), {"version": "2"})())
    with pytest.raises(ModelMismatch, match="other weights of the encoder sides"):
        dcmh.SearchIndex.build(None, data, tmp_path / "index", encoder="sides")


def test_interrupted(cli, squares, tmp_path, monkeypatch):
    """While the encoder sees the sample, nothing is written; while the index is built, it continues."""
    before = set(os.listdir(tempfile.gettempdir()))

    class Stops(TwoSides):
        def encode_images(self, pixels):
            if len(pixels) > 1:
                raise KeyboardInterrupt
            return super().encode_images(pixels)

    encoders.register("sides", Stops())
    assert cli("index", squares, "--encoder", "sides").code == 130
    assert not (tmp_path / "photos.dcmh").exists()
    encoders.register("sides", TwoSides())
    with monkeypatch.context() as patch:
        patch.setattr("dcmh.search.update.Update.run", lambda update: (_ for _ in ()).throw(KeyboardInterrupt))
        stopped = cli("index", squares, "--encoder", "sides")
    assert stopped.code == 130
    assert "Continue: dcmh index" in stopped.last
    answer = cli("index", squares, "--encoder", "sides")
    assert (answer.code, answer.out) == (0, "30 new, 0 changed, 0 gone, 0 unchanged.\n")
    assert "saw only" not in answer.err  # the model of the first time
    assert not {name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("dcmh-")}
