"""STMH: how many topics an item has, and its updates against the definition."""

import numpy as np
import pytest

from dcmh.errors import ParameterError
from dcmh.methods.stmh import STMH, hot, squared_distances


@pytest.mark.parametrize("bits", [1, 2, 7, 16])
def test_a_text_has_m_topics_and_a_picture_half_the_bits(vectors, bits):
    model = STMH(bits=bits).fit(vectors)
    texts = (model.encode(text=vectors.text) > 0).sum(axis=1)
    assert (texts == max(round(bits / 2), 1)).all()
    pictures = (model.encode(image=vectors.image) > 0).sum(axis=1)
    assert (pictures == (bits + 1) // 2).all()


def test_a_text_has_its_nearest_topics(vectors):
    model = STMH(bits=9).fit(vectors)
    distance = np.linalg.norm(vectors.text.values[:, :, None] - model.centres_, axis=1)
    np.testing.assert_allclose(squared_distances(vectors.text.values, model.centres_), distance**2, rtol=1e-4)
    codes = model.encode(text=vectors.text) > 0
    for row in range(20):
        assert distance[row][codes[row]].max() <= distance[row][~codes[row]].min()


def test_hot_takes_the_first_of_equal_values():
    np.testing.assert_array_equal(hot(np.array([[3.0, 1, 1, 1]]), 2), [[0, 1, 1, 0]])


def test_amounts_solve_each_row_of_their_own():
    model = STMH(bits=5, nu=0.7, gamma=0.1, balance=0.4)
    rng = np.random.default_rng(0)
    X, F1, R = rng.normal(size=(30, 8)), rng.normal(size=(8, 5)), rng.normal(size=(5, 5))
    G2, w = hot(rng.random((30, 5)), 2), rng.random(30)
    found = model._amounts(X @ F1, F1, G2, R, w)
    for i in range(30):
        left = 0.4 * w[i] * F1.T @ F1 + 0.7 * R @ R.T + 0.1 * np.eye(5)
        right = 0.4 * w[i] * X[i] @ F1 + 0.7 * G2[i] @ R.T
        np.testing.assert_allclose(found[i], np.linalg.solve(left, right), atol=1e-10)


@pytest.mark.parametrize("wrong", [{"balance": 0.0}, {"nu": 0.0}, {"gamma": 0.0}, {"iterations": 0}])
def test_settings_outside_what_makes_sense(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        STMH(**wrong)
