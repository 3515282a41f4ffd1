"""CMFH: the objective never rises, each update is a stationary point, and what is reported is the definition."""

import numpy as np
import pytest

from dcmh.errors import ParameterError
from dcmh.methods.cmfh import CMFH, _Side, objective, update_latent

MU, GAMMA, BALANCE = 3.0, 0.2, 0.3


def value(X, Y, V, U1, U2, P1, P2):
    """The objective as the paper writes it."""

    def square(M):
        return float((M * M).sum())

    fit = BALANCE * square(X - V @ U1) + (1 - BALANCE) * square(Y - V @ U2)
    reach = MU * (square(V - X @ P1) + square(V - Y @ P2))
    return fit + reach + GAMMA * sum(map(square, (U1, U2, P1, P2, V)))


class Point:
    """Some values of all variables."""

    def __init__(self, X, Y):
        rng = np.random.default_rng(0)
        self.X, self.Y, self.V = X, Y, rng.normal(size=(len(X), 3))
        self.sides = [
            _Side(view.T @ view, weight, rng.normal(size=(view.shape[1], 3)), GAMMA / MU)
            for view, weight in ((X, BALANCE), (Y, 1 - BALANCE))
        ]
        for side in self.sides:
            side.U = rng.normal(size=side.U.shape)

    def value(self):
        first, second = self.sides
        return value(self.X, self.Y, self.V, first.U, second.U, first.P, second.P)

    def assert_stationary(self, array):
        """Moving any entry of the array either way changes the objective by the square of the move only."""
        rng, step = np.random.default_rng(1), 1e-3
        for index in zip(*(rng.integers(size, size=20) for size in array.shape), strict=True):
            kept, around = array[index], []
            for move in (step, -step):
                array[index] = kept + move
                around.append(self.value())
            array[index] = kept
            assert abs(around[0] - around[1]) / (2 * step) < 1e-5
            assert min(around) >= self.value()


@pytest.fixture
def point(centred):
    return Point(*(view[:40] for view in centred[:2]))


def test_updates_are_stationary_points(point):
    for side, view in zip(point.sides, (point.X, point.Y), strict=True):
        side.update_basis(view.T @ point.V, point.V.T @ point.V, GAMMA)
        point.assert_stationary(side.U)
        side.update_map(view.T @ point.V)
        point.assert_stationary(side.P)
    point.V = np.hstack([point.X, point.Y]) @ update_latent(point.sides, MU, GAMMA)
    point.assert_stationary(point.V)


def test_objective_is_the_definition(point):
    products = [view.T @ point.V for view in (point.X, point.Y)]
    found = objective(point.sides, products, point.V.T @ point.V, MU, GAMMA)
    np.testing.assert_allclose(found, point.value(), rtol=1e-12)


def test_objective_never_rises(vectors):
    model = CMFH(bits=8, iterations=60, tolerance=0).fit(vectors)
    falls = -np.diff([row["objective"] for row in model.history_])
    assert len(falls) == 59
    assert falls.min() > -1e-9 * model.history_[-1]["objective"]


def test_stops_when_it_stands_still(vectors):
    model = CMFH(bits=8, iterations=10_000, tolerance=1e-3).fit(vectors)
    assert len(model.history_) < 1000


@pytest.mark.parametrize("wrong", [{"balance": 1.0}, {"mu": 0.0}, {"gamma": -1.0}, {"iterations": 0}])
def test_settings_outside_what_makes_sense(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        CMFH(**wrong)
