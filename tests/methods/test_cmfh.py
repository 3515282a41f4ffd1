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


@pytest.fixture
def point(centred):
    X, Y, _ = (part[:40] for part in centred)
    rng = np.random.default_rng(0)
    V = rng.normal(size=(40, 3))
    sides = [_Side(X, BALANCE, rng.normal(size=(24, 3)), GAMMA / MU)]
    sides.append(_Side(Y, 1 - BALANCE, rng.normal(size=(20, 3)), GAMMA / MU))
    for side in sides:
        side.U, side.XV = rng.normal(size=side.U.shape), side.view.T @ V
    return sides, V


def at(sides, V):
    return value(sides[0].view, sides[1].view, V, sides[0].U, sides[1].U, sides[0].P, sides[1].P)


def assert_stationary(sides, V, array):
    """Moving any entry of the array either way changes the objective by the square of the move only."""
    rng, step = np.random.default_rng(1), 1e-3
    for index in zip(*(rng.integers(size, size=20) for size in array.shape), strict=True):
        kept, around = array[index], []
        for move in (step, -step):
            array[index] = kept + move
            around.append(at(sides, V))
        array[index] = kept
        assert abs(around[0] - around[1]) / (2 * step) < 1e-5
        assert min(around) >= at(sides, V)


def test_updates_are_stationary_points(point):
    sides, V = point
    for side in sides:
        side.update_basis(V, GAMMA)
        assert_stationary(sides, V, side.U)
        side.update_map()
        assert_stationary(sides, V, side.P)
    V = update_latent(sides, MU, GAMMA)
    assert_stationary(sides, V, V)


def test_objective_is_the_definition(point):
    sides, V = point
    np.testing.assert_allclose(objective(sides, V, MU, GAMMA), at(sides, V), rtol=1e-12)


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
