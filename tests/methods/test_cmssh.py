"""CMSSH: each step of a boosting round against brute force."""

import numpy as np
import pytest

from dcmh.errors import DataError, ParameterError
from dcmh.methods._two_views import sample_pairs
from dcmh.methods.cmssh import CMSSH, _Pairs, _sweep, leading_vectors, thresholds


@pytest.fixture
def pairs(vectors):
    rng = np.random.default_rng(0)
    a, b, similar = sample_pairs(vectors.labels, 2_000, rng)
    w = rng.random(2_000)
    return _Pairs(a, b, np.where(similar, 1.0, -1.0), w / w.sum(), 300)


def test_pairs_are_half_similar_and_say_it_rightly(vectors):
    a, b, similar = sample_pairs(vectors.labels, 999, np.random.default_rng(0))
    assert len(a) == len(b) == 999
    assert similar.sum() == 499
    np.testing.assert_array_equal(similar, (vectors.labels[a] & vectors.labels[b]).any(axis=1))
    with pytest.raises(DataError, match="share no label"):
        sample_pairs(np.ones((5, 1), np.uint8), 10, np.random.default_rng(0))


def test_leading_vectors_are_those_of_the_weighted_covariance(centred, pairs):
    X, Y, _ = centred
    x, y = X[pairs.a], Y[pairs.b]
    x, y = x - pairs.w @ x, y - pairs.w @ y
    C = x.T @ ((pairs.w * pairs.s)[:, None] * y)
    p, q = leading_vectors(X, Y, pairs, np.random.default_rng(0))
    assert np.linalg.norm(p) == pytest.approx(1)
    assert p @ C @ q == pytest.approx(np.linalg.norm(C, 2), rel=1e-3)


def test_sweep_finds_the_best_threshold():
    rng = np.random.default_rng(0)
    projection, gain = rng.integers(6, size=30).astype(float), rng.normal(size=30)
    t, best = _sweep(projection, gain)
    tried = [(np.where(projection - edge >= 0, 1, -1) * gain).sum() for edge in np.arange(-1, 8) - 0.5]
    assert best == pytest.approx(max(tried))
    assert (np.where(projection + t >= 0, 1, -1) * gain).sum() == pytest.approx(best)


def test_thresholds_report_the_agreement_they_reach(centred, pairs):
    X, Y, _ = centred
    x, y = X[:, 0], Y[:, 0]
    a, b, r = thresholds(x, y, pairs)
    signs = np.where(x + a >= 0, 1, -1)[pairs.a] * np.where(y + b >= 0, 1, -1)[pairs.b]
    assert r == pytest.approx((pairs.w * pairs.s * signs).sum())


def test_every_bit_agrees_better_than_chance(vectors):
    model = CMSSH(bits=8, pairs=5_000).fit(vectors)
    assert min(row["agreement"] for row in model.history_) > 0
    with pytest.raises(ParameterError, match="pairs"):
        CMSSH(pairs=1)
