"""Frozen features: the network's own, computed once for a content, bad files told apart."""

import os
import sqlite3

import numpy as np
import pytest
import torch
from PIL import Image

from dcmh.data import Images
from dcmh.data.benchmarks.toy import toy
from dcmh.errors import DataError, StorageError
from dcmh.inputs import features
from dcmh.inputs.views import FeatureView, recorded_framing
from dcmh.networks import backbone
from dcmh.util.cache import VectorStore


@pytest.fixture(scope="module")
def pictures():
    return toy(n=8, size=40).take(range(6)).columns["image"]


def test_features_are_the_networks(pictures, tmp_path, monkeypatch):
    """On a GPU, too: a cache, and the codes of an index, may come from either."""
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    found = features.extract(pictures)
    network, width = backbone("efficientnet-lite0")
    network.eval()
    from dcmh.inputs.images import decode

    pixels = np.stack([decode(pictures.source(row), 224) for row in range(6)])
    with torch.inference_mode():
        expected = network(torch.from_numpy(pixels).permute(0, 3, 1, 2).float()).numpy()
    assert found.shape == (6, width)
    assert np.allclose(found, expected, atol=1e-4)


def test_a_content_is_computed_once(pictures, monkeypatch):
    features.extract(pictures)
    monkeypatch.setattr(features, "run", None)  # would fail if called
    again = features.extract(Images([pictures.values[1], pictures.values[0], pictures.values[1]]))
    assert np.array_equal(again[0], again[2])


def test_a_file_is_hashed_once_and_again_when_it_has_changed(pictures, tmp_path, monkeypatch):
    file = tmp_path / "one.png"
    hashed = []
    whole = features.images.content_hash
    monkeypatch.setattr(features.images, "content_hash", lambda source: hashed.append(source) or whole(source))
    Image.fromarray(pictures.values[0]).save(file, compress_level=0)
    before, again = (features.extract(Images([file])) for _ in range(2))
    assert hashed == [file]
    assert np.array_equal(before, again)
    state = file.stat()
    Image.fromarray(pictures.values[1]).save(tmp_path / "other.png", compress_level=0)  # as large, and as old
    os.utime(tmp_path / "other.png", ns=(state.st_atime_ns, state.st_mtime_ns))
    (tmp_path / "other.png").rename(file)
    assert file.stat().st_size == state.st_size
    assert not np.array_equal(features.extract(Images([file])), before)


def test_a_missing_picture_has_zeros(pictures):
    found = features.extract(Images([pictures.values[0], None]))
    assert found[0].any()
    assert not found[1].any()


def test_a_bad_file_is_named_or_handed_over(tmp_path, pictures):
    (tmp_path / "bad.jpg").write_text("no picture")
    column = Images([pictures.values[0], tmp_path / "bad.jpg", tmp_path / "gone.jpg"])
    with pytest.raises(DataError, match=r"(bad|gone)\.jpg"):
        features.extract(column)
    found = []
    values = features.extract(column, on_error=lambda row, reason: found.append((row, reason)))
    assert {row for row, _ in found} == {1, 2}
    assert values[0].any()
    assert not values[1:].any()


def test_a_damaged_cache_says_to_delete_it(pictures, home):
    store = features.FeatureStore("efficientnet-lite0")
    kept = store.path.read_bytes()
    store.path.write_bytes(b"this is no database, and it is long enough to be looked at" * 50)
    try:
        with pytest.raises(DataError, match="Delete the file"):
            features.extract(pictures)
    finally:
        store.path.write_bytes(kept)


def test_a_cache_that_cannot_be_written_is_said(pictures, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DCMH_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="DCMH_HOME"):
        features.extract(pictures)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit_and_are_left_as_they_were(pictures, threads):
    cpu = torch.device("cpu")
    network = features.frozen("efficientnet-lite0", None, cpu)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 224, 224, 3), np.uint8)
    expected = np.concatenate([features.run(network, pixels[row : row + 1], cpu) for row in range(9)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = features.run(network, pixels, cpu)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(found, expected)


def test_no_pictures_have_no_features():
    cpu = torch.device("cpu")
    network = features.frozen("efficientnet-lite0", None, cpu)
    assert features.run(network, np.zeros((0, 224, 224, 3), np.uint8), cpu).shape == (0, 1280)


def test_a_cache_on_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    class Small(sqlite3.Connection):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            self.execute("PRAGMA max_page_count = 8")

    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    store = VectorStore("features", "x")
    store.put([(b"0" * 16, np.zeros(4, np.float32))])
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Small))
    with pytest.raises(StorageError, match="full") as raised:
        store.put([(bytes([row]) * 16, np.zeros(1280, np.float32)) for row in range(20)])
    assert raised.value.state == "full"
    assert "DCMH_HOME" in str(raised.value)
    assert list(store.get([b"0" * 16])) == [b"0" * 16]


def test_networks_of_another_size_have_their_own_cache(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    view = FeatureView("efficientnet-lite2", device="cpu").fit(pictures)
    assert view(pictures).shape == (6, view.width)
    assert [file.name.rpartition("-")[0] for file in (tmp_path / "features").iterdir()] == ["efficientnet-lite2"]
    record = view.save(tmp_path, "image")
    assert (record["size"], recorded_framing(record).size, recorded_framing({}).size) == (256, 256, 224)
    assert "size" not in FeatureView().save(tmp_path, "image")  # older models keep their fingerprint
