"""Bags of visual words of a few drawn pictures."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dcmh.data import Images
from dcmh.errors import DataError, MissingExtra, NotFittedError, ParameterError
from dcmh.inputs import sift


def drawn(seed, size=96):
    """Rectangles at random on grey: corners for SIFT to find."""
    generator = np.random.default_rng(seed)
    picture = np.full((size, size, 3), 120, np.uint8)
    for _ in range(12):
        x, y = generator.integers(0, size - 16, 2)
        picture[y : y + generator.integers(6, 16), x : x + generator.integers(6, 16)] = generator.integers(0, 256, 3)
    return picture


@pytest.fixture(scope="module")
def pictures():
    plain = np.full((96, 96, 3), 200, np.uint8)
    return Images([*(drawn(seed) for seed in range(8)), plain, None, drawn(0)])


@pytest.fixture(scope="module")
def bags(pictures):
    return sift.bag_of_visual_words(pictures, range(6), words=16)


def test_bags_are_shares_of_words(pictures, bags):
    assert bags.shape == (11, 16)
    assert bags.dtype == np.float32
    assert (bags >= 0).all()
    np.testing.assert_allclose((bags[:8] ** 2).sum(1), 1, atol=1e-5)
    assert (bags[:8] > 0).sum(1).min() >= 3
    assert len(np.unique(bags[:8], axis=0)) == 8


def test_without_key_points_or_picture_a_bag_is_zero(bags):
    assert not bags[8].any()
    assert not bags[9].any()


def test_the_same_picture_has_the_same_bag(bags):
    np.testing.assert_array_equal(bags[10], bags[0])


def test_a_seed_gives_the_same_words_on_any_machine_and_in_any_order(pictures, bags, tmp_path, monkeypatch):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))  # nothing is cached there
    again = sift.bag_of_visual_words(pictures, [5, 3, 1, 0, 2, 4], words=16)
    np.testing.assert_array_equal(again, bags)
    other = sift.bag_of_visual_words(pictures, range(6), words=16, seed=1)
    assert (other != bags).any()


def test_what_is_known_is_not_computed_again(pictures, bags, monkeypatch):
    monkeypatch.setattr(sift.images, "decode", lambda *_: pytest.fail("decoded again"))
    np.testing.assert_array_equal(sift.bag_of_visual_words(pictures, range(6), words=16), bags)


def test_bags_are_computed_for_new_pictures_only(pictures, bags, monkeypatch):
    words = sift.VisualWords(16).fit(pictures.take(np.arange(6)))
    seen = []
    decode = sift.images.decode
    monkeypatch.setattr(sift.images, "decode", lambda source, size: (seen.append(1), decode(source, size))[1])
    words.transform(Images([*pictures.values, drawn(77), drawn(77)]))
    assert len(seen) == 1


def test_k_means_finds_clusters():
    generator = np.random.default_rng(0)
    centres = generator.normal(0, 100, (5, 8))
    points = (centres[generator.integers(5, size=2000)] + generator.normal(0, 1, (2000, 8))).astype(np.float32)
    found = sift.k_means(points, 20, generator)
    nearest = np.linalg.norm(found[:, None] - centres[None], axis=2).min(0)
    assert nearest.max() < 3


def test_what_cannot_work_is_said(tmp_path):
    plain = Images([np.full((64, 64, 3), value, np.uint8) for value in (0, 99)])
    with pytest.raises(DataError, match="SIFT finds no key points in the 2 training pictures"):
        sift.VisualWords(8).fit(plain)
    with pytest.raises(NotFittedError):
        sift.VisualWords(8).transform(plain)
    with pytest.raises(ParameterError, match="words must be a whole number from 2 to 65536, not 1"):
        sift.VisualWords(1)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"Cannot read .*bad.png: not an image"):
        sift.VisualWords(8).fit(Images([tmp_path / "bad.png"]))


def test_opencv_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtra, match=r'SIFT features need OpenCV. Install: pip install "dcmh\[bench\]"'):
        sift.VisualWords(8).fit(Images([drawn(500)]))
