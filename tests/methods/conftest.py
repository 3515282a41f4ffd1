"""Feature vectors in which items of one label lie near each other, in either modality."""

from __future__ import annotations

import numpy as np
import pytest

from dcmh.data import Dataset


@pytest.fixture(scope="session")
def vectors() -> Dataset:
    """300 items of 8 labels, about a quarter of them with two: images (300, 24), texts (300, 20)."""
    rng = np.random.default_rng(7)
    labels = np.eye(8, dtype=np.uint8)[rng.integers(8, size=300)]
    labels[np.arange(300), rng.integers(8, size=300)] |= rng.random(300) < 0.28
    view = {
        name: labels @ rng.normal(size=(8, width)) + rng.normal(scale=0.8, size=(300, width))
        for name, width in (("image", 24), ("text", 20))
    }
    names = ["dog", "boat", "pizza", "tree", "car", "book", "snow", "guitar"]
    return Dataset.from_arrays(
        **{name: values.astype(np.float32) for name, values in view.items()},
        labels=labels,
        label_names=names,
        name="vectors",
    )


@pytest.fixture(scope="session")
def split(vectors):
    return vectors.split(queries=60, seed=0)


@pytest.fixture(scope="session")
def centred(vectors):
    """The two views as methods see them, in float64 with mean 0, and the labels."""
    X, Y = (vectors[name].values.astype(np.float64) for name in ("image", "text"))
    return X - X.mean(axis=0), Y - Y.mean(axis=0), vectors.labels
