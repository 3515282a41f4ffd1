"""CRH: its loss against the definition, and descent of the objective."""

import numpy as np
import pytest

from dcmh.errors import ParameterError
from dcmh.methods._two_views import sample_pairs
from dcmh.methods.crh import CRH, LAM, A, _Side, principal, start, tau, tau1_slope

D = np.linspace(-2, 2, 4001)


def test_tau_is_continuous_and_clipped():
    assert tau(np.array([0.0])) == pytest.approx(A * LAM**2 / 2)
    assert (tau(np.array([A * LAM + 1e-9, 5.0])) == 0).all()
    assert np.abs(np.diff(tau(D))).max() < 2e-3
    assert (tau(D) >= 0).all()


def test_tau1_is_the_convex_part():
    slope = np.gradient(tau(D) + D**2 / 2, D)
    np.testing.assert_allclose(tau1_slope(D)[1:-1], slope[1:-1], atol=2e-3)
    assert (np.diff(tau1_slope(D)) >= -1e-12).all()


def test_principal_directions_keep_inner_products(centred):
    X, _, _ = centred
    Z = X @ principal(X, 100)
    assert (Z * Z).sum(axis=1).mean() == pytest.approx(1)
    np.testing.assert_allclose(Z @ Z.T, X @ X.T / (X * X).sum(axis=1).mean(), atol=1e-9)
    assert principal(X, 5).shape == (24, 5)


def test_alternation_descends(centred):
    X, Y, labels = centred
    X, Y = X @ principal(X, 24), Y @ principal(Y, 20)
    a, b, similar = sample_pairs(labels, 3_000, np.random.default_rng(0))
    s, omega = similar.astype(float), np.full(3_000, 1 / 3_000)
    model = CRH(bits=4)
    first, second = _Side(X, a, s, omega, model), _Side(Y, b, s, omega, model)
    wx, wy = start(X[a], Y[b], omega * (2 * s - 1))
    values = [model._objective(first, second, wx, wy)]
    for _ in range(20):
        wx = first.improve(wx, (Y @ wy)[b])
        wy = second.improve(wy, (X @ wx)[a])
        values.append(model._objective(first, second, wx, wy))
    # The margins' kinks, of weight 1/n against g, leave a ripple at the end.
    assert np.diff(values).max() < 1e-3 * values[0]
    assert values[-1] < 0.8 * values[0]


def test_first_bit_treats_most_pairs_rightly(vectors):
    model = CRH(bits=4, pairs=5_000).fit(vectors)
    assert model.history_[0]["error"] < 0.4


@pytest.mark.parametrize("wrong", [{"pairs": 1}, {"dimensions": 0}, {"g": 0.0}, {"ridge": 0.0}])
def test_settings_outside_what_makes_sense(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        CRH(**wrong)
