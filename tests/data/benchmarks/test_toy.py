"""The toy set: reproducible, and learnable from both sides without being trivial."""

import numpy as np
import pytest

from dcmh.data import available, load_dataset
from dcmh.data.benchmarks.toy import toy
from dcmh.errors import ParameterError
from dcmh.util.text import BagOfWords


def test_shapes():
    data = toy()
    assert len(data) == 200
    assert data.labels.shape == (200, 8)
    assert all(value.shape == (24, 24, 3) and value.dtype == np.uint8 for value in data.image.values)
    assert data.labels.any(axis=0).all()
    assert data.labels.any(axis=1).all()
    assert 0.1 < (data.labels.sum(axis=1) == 2).mean() < 0.4
    assert 200 < len({word for text in data.text.values for word in text.split()}) < 350


def test_the_seed_decides():
    one, again, other = toy(30, seed=1), toy(30, seed=1), toy(30, seed=2)
    np.testing.assert_array_equal(one.image.values, again.image.values)
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()


def test_labels_can_be_learned_from_either_side():
    data = toy(450, seed=3)
    pixels = np.stack(data.image.values).reshape(450, -1) / 255
    words = BagOfWords().fit(data.text.values).transform(data.text.values)
    for view in (pixels, words):
        x, known = np.c_[view, np.ones(450)], data.labels[:300].astype(float)
        weights = np.linalg.solve(x[:300].T @ x[:300] + 10 * np.eye(x.shape[1]), x[:300].T @ known)
        best = (x[300:] @ weights).argmax(axis=1)
        right = data.labels[300:][np.arange(150), best].mean()
        assert 0.4 < right < 0.99  # chance is about 0.15


def test_by_name():
    assert "toy" in available()
    assert len(load_dataset("toy", n=16, size=10)) == 16
    with pytest.raises(ParameterError, match="at least 8 items"):
        toy(3)
    with pytest.raises(ParameterError, match=r"toy has no option 'count'. It has: n, size, seed"):
        load_dataset("toy", count=3)
