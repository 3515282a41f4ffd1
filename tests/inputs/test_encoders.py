"""Encoders by name: what transformers gives when called by hand is the oracle; ONNX towers are computed in NumPy."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import dcmh
import small_encoders
from dcmh.errors import EncoderError, MissingExtra, ModelError, ModelMismatch, ParameterError
from dcmh.inputs import encoders, images
from dcmh.inputs.images import STRETCH, Framing
from dcmh.util.arrays import unit

TEXTS = ["a red square", "the dog on the beach", "a"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    return {"clip": small_encoders.clip(folder / "clip"), "siglip": small_encoders.siglip(folder / "siglip")}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Encoders are opened again, and forgotten afterwards."""
    encoders._opened.cache_clear()
    monkeypatch.setattr(encoders, "_registered", {})
    yield
    encoders._opened.cache_clear()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Pictures of several shapes, in files; a JPEG much larger than the encoders' input among them."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    files = []
    for i, (width, height, suffix) in enumerate([(50, 40, "png"), (33, 71, "png"), (300, 410, "jpg"), (20, 90, "png")]):
        small = random.integers(0, 256, (6, 5, 3), np.uint8)
        Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{i}.{suffix}")
        files.append(folder / f"{i}.{suffix}")
    return files


def by_hand(folder, photos):
    """The vectors that transformers gives."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokens = AutoTokenizer.from_pretrained(folder)(
        TEXTS, padding="max_length", truncation=True, max_length=12, return_tensors="pt"
    )
    with torch.no_grad():
        text = model.get_text_features(**tokens).pooler_output
        pixels = processor([Image.open(photo) for photo in photos], return_tensors="pt")
        image = model.get_image_features(**pixels).pooler_output
    return [torch.nn.functional.normalize(vectors).numpy() for vectors in (text, image)]


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_vectors_are_those_of_transformers(folders, photos, name):
    encoder = encoders.image_encoder(f"transformers:{folders[name]}")
    text, image = by_hand(folders[name], photos)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), text, atol=2e-6)
    pixels = np.stack([images.decode(photo, encoder.framing) for photo in photos])
    np.testing.assert_allclose(encoder.encode_images(pixels), image, atol=2e-6)
    assert np.abs(image[0] - image[1]).max() > 1e-3, "an oracle that does not tell pictures apart proves nothing"
    assert encoder.width == text.shape[1]
    assert encoder.framing == {"clip": Framing(32, 36, 3), "siglip": Framing(32, STRETCH, 3)}[name]


def test_worker_processes_and_the_sandbox_frame_pictures_alike(photos):
    from dcmh.inputs.decoding_workers import WorkerPool, can_work
    from dcmh.inputs.sandbox import Sandbox

    framing = Framing(32, 36, Image.Resampling.LANCZOS)
    expected = np.stack([images.decode(photo, framing) for photo in photos])
    assert (expected != np.stack([images.decode(photo, 32) for photo in photos])).any()
    sandbox = Sandbox(1, 10, 500)
    try:
        for photo, pixels in zip(photos, expected, strict=True):
            with sandbox.open(photo) as opened:
                np.testing.assert_array_equal(opened.decode(framing), pixels)
    finally:
        sandbox.close()
    if can_work():
        from dcmh.inputs.decoding_workers import Task

        pool = WorkerPool(1, framing)
        pool.start()
        try:
            task = Task([str(photo) for photo in photos], np.empty_like(expected))
            pool.submit(task)
            pool.finish(task)
        finally:
            pool.stop()
        np.testing.assert_array_equal(task.out, expected)


def toy(count=40):
    """Squares of three colours with their names."""
    random = np.random.default_rng(1)
    classes = random.integers(0, 3, count)
    pictures = [np.full((40, 48, 3), 40, np.uint8) for _ in range(count)]
    for picture, kind in zip(pictures, classes, strict=True):
        picture[..., kind] = random.integers(150, 256)
    texts = [f"a {('red', 'green', 'blue')[kind]} square" for kind in classes]
    return dcmh.Dataset.from_arrays(image=pictures, text=texts, labels=classes)


@pytest.mark.parametrize("method", [dcmh.DCMH(16, epochs=2, hidden=32), dcmh.methods.get("semantic")(16)])
def test_train_save_load_index_and_search(folders, photos, tmp_path, monkeypatch, method):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path / "home"))
    data = toy()
    model = method.set_params(encoder=f"transformers:{folders['clip']}").fit(data)
    assert model.fine_ is not None
    assert model.fine_.dimensions == 16
    # Pictures and words share the encoder's space: fine vectors are its own, less a mean, in another basis.
    encoder = encoders.image_encoder(model.encoder)
    vectors = encoder.encode_images(
        np.stack([images.decode(picture, encoder.framing) for picture in data.image.values])
    )
    own = unit(vectors - vectors.mean(0))
    fine = model.fine_.of_inputs("image", model.views_["image"](data.image), model.views_["image"])
    np.testing.assert_allclose(fine @ fine.T, own @ own.T, atol=1e-4)
    model.save(tmp_path / "model")
    loaded = dcmh.load(tmp_path / "model")
    for modality in ("image", "text"):
        assert (loaded.encode(**{modality: data[modality]}) == model.encode(**{modality: data[modality]})).all()
    index = dcmh.SearchIndex.build(loaded, data, tmp_path / "index")
    hits = dcmh.SearchIndex.open(tmp_path / "index").search(text="a red square", k=5)
    assert len(hits) == 5
    by_picture = index.search(image=photos[0], k=3)
    assert len(by_picture) == 3


def test_a_missing_or_different_encoder_is_an_error(folders, tmp_path):
    shutil.copytree(folders["clip"], tmp_path / "mine")
    data = toy(24)
    model = dcmh.DCMH(8, epochs=1, hidden=8, encoder=f"transformers:{tmp_path / 'mine'}").fit(data, fine=0)
    model.save(tmp_path / "model")
    encoders._opened.cache_clear()
    small_encoders.clip(tmp_path / "mine", seed=1)
    for modality in ("image", "text"):
        with pytest.raises(ModelMismatch, match="other weights of the encoder"):
            dcmh.load(tmp_path / "model").encode(**{modality: data[modality]})
    shutil.rmtree(tmp_path / "mine")
    encoders._opened.cache_clear()
    for modality in ("image", "text"):
        with pytest.raises(ParameterError, match=r"needs the encoder .* it learned with"):
            dcmh.load(tmp_path / "model").encode(**{modality: data[modality]})


def test_a_folder_that_was_moved_is_found_in_the_cache_folder(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    shutil.copytree(folders["clip"], tmp_path / "encoders" / "clip")
    opened = encoders.open_encoder("transformers:/nowhere/clip")
    assert opened.sha256 == encoders.open_encoder(f"transformers:{folders['clip']}").sha256


def test_changed_preprocessing_is_another_encoder(folders, tmp_path):
    shutil.copytree(folders["clip"], tmp_path / "mine")
    settings = (tmp_path / "mine" / "preprocessor_config.json").read_text()
    (tmp_path / "mine" / "preprocessor_config.json").write_text(
        settings.replace('"shortest_edge": 36', '"shortest_edge": 32')
    )
    changed = encoders.open_encoder(f"transformers:{tmp_path / 'mine'}")
    assert changed.sha256 != encoders.open_encoder(f"transformers:{folders['clip']}").sha256


def test_folders_that_cannot_be_used(folders, tmp_path, monkeypatch):
    def refused(change, error, match):
        folder = tmp_path / "broken"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folders["clip"], folder)
        change(folder)
        with pytest.raises(error, match=match):
            encoders.open_encoder(f"transformers:{folder}")

    refused(
        lambda folder: (folder / "preprocessor_config.json").unlink(), EncoderError, "how its encoder takes pictures"
    )
    refused(
        lambda folder: (folder / "preprocessor_config.json").write_text("{"), EncoderError, "preprocessor_config.json"
    )
    refused(lambda folder: (folder / "preprocessor_config.json").write_text("{}"), EncoderError, "size")
    oblong = '{"size": {"height": 32, "width": 48}, "image_mean": [0], "image_std": [1]}'
    refused(
        lambda folder: (folder / "preprocessor_config.json").write_text(oblong), EncoderError, "not resized to a square"
    )
    refused(lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), EncoderError, "cannot be loaded")
    refused(lambda folder: (folder / "model.safetensors").unlink(), EncoderError, "cannot be loaded")
    with pytest.raises(ParameterError, match="does not exist"):
        encoders.open_encoder("transformers:no/such/folder")
    with pytest.raises(ParameterError, match="transformers:FOLDER, onnx:FOLDER"):
        encoders.open_encoder("glove")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, revision: folders[name.partition("/")[2]])
    assert encoders.open_encoder("transformers:hf://tests/clip").name == "transformers:hf://tests/clip"
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, revision: (_ for _ in ()).throw(OSError("no network"))
    )
    with pytest.raises(ModelError, match="no network"):
        encoders.open_encoder("transformers:hf://tests/other")
    encoders._opened.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install \"dcmh\[clip\]\""):
        encoders.open_encoder(f"transformers:{folders['clip']}")


def test_onnx_towers(tmp_path):
    weights = small_encoders.onnx_towers(tmp_path / "both")
    encoder = encoders.image_encoder(f"onnx:{tmp_path / 'both'}")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    colours = (pixels / 255).mean(axis=(1, 2)) @ weights["colours"]
    np.testing.assert_allclose(encoder.encode_images(pixels), unit(colours), atol=1e-6)
    ids = [1, 3, 6, 14] + [0] * 8  # <start> a red <end>, padded: the tower takes no mask
    mean = weights["table"][ids].mean(0)
    np.testing.assert_allclose(encoder.encode_texts(["a red"])[0], mean / np.linalg.norm(mean), atol=1e-6)
    model = dcmh.DCMH(8, epochs=1, hidden=8, encoder=f"onnx:{tmp_path / 'both'}").fit(toy(24))
    assert model.fine_.dimensions == 6
    small_encoders.onnx_towers(tmp_path / "texts", pictures=False)
    small_encoders.onnx_towers(tmp_path / "pictures", texts=False)
    with pytest.raises(ParameterError, match="takes texts, not pictures"):
        encoders.image_encoder(f"onnx:{tmp_path / 'texts'}")
    with pytest.raises(ParameterError, match="takes pictures, not texts"):
        encoders.text_encoder(f"onnx:{tmp_path / 'pictures'}")
    (tmp_path / "pictures" / "vision_model.onnx").write_bytes(b"nothing")
    encoders._opened.cache_clear()
    with pytest.raises(EncoderError, match="cannot be loaded"):
        encoders.open_encoder(f"onnx:{tmp_path / 'pictures'}")


def test_an_encoder_for_one_kind_leaves_the_other_as_it_is(tmp_path):
    small_encoders.onnx_towers(tmp_path / "pictures", texts=False)
    model = dcmh.DCMH(8, encoder=f"onnx:{tmp_path / 'pictures'}")
    assert model._text_encoder == encoders.DEFAULT
    assert model._image_network == f"onnx:{tmp_path / 'pictures'}"


class Colours:
    """The mean colour of a picture, and the names of colours: the smallest encoder there is."""

    size = 16
    version = "1"

    def encode_images(self, pixels):
        return pixels.mean(axis=(1, 2))

    def encode_texts(self, texts):
        return [[1.0 + 9 * ("red" in text), 1.0 + 9 * ("green" in text), 1.0 + 9 * ("blue" in text)] for text in texts]


def test_an_object_with_two_methods(tmp_path):
    encoders.register("colours", Colours())
    data = toy()
    model = dcmh.methods.get("semantic")(16, encoder="colours").fit(data)
    index = dcmh.SearchIndex.build(model, data, tmp_path / "index")
    found = index.search(text="a blue square", k=5, modality="image")
    assert all("blue" in data.text.values[data.ids.index(hit.name)] for hit in found)
    model.save(tmp_path / "model")
    encoders.register("colours", type("Other", (Colours,), {"version": "2"})())
    with pytest.raises(ModelMismatch, match="version 1"):
        dcmh.load(tmp_path / "model").encode(text=["red"])
    with pytest.raises(ParameterError, match="without a colon"):
        encoders.register("onnx:colours", Colours())
    with pytest.raises(EncoderError, match="neither encode_texts nor encode_images"):
        encoders.register("nothing", object())
    flat = type("Flat", (Colours,), {"encode_images": lambda self, pixels: pixels.mean(axis=(1, 2, 3))})()
    with pytest.raises(EncoderError, match="one vector per item"):
        encoders.register("flat", flat)


def test_an_encoder_of_another_package(monkeypatch):
    class Point:
        name = "colours"

        @staticmethod
        def load():
            return lambda argument: type("Named", (Colours,), {"version": argument})()

    monkeypatch.setattr(encoders, "entry_points", lambda group: [Point] if group == "dcmh.encoders" else [])
    assert encoders.image_encoder("colours:7").version == "7"
    with pytest.raises(ParameterError, match="colours"):
        encoders.open_encoder("colour")
