"""MLBE: the log posterior against the definition, every block raises it, and flips gain what they say."""

import numpy as np
import pytest

from dcmh.errors import ParameterError
from dcmh.methods._two_views import unit_rows
from dcmh.methods.mlbe import MLBE, RATE, SHAPE, Link, Side, log_posterior


@pytest.fixture
def model(centred):
    """Two sides and the link, of 40 landmarks and 5 bits, after one block of each kind."""
    rng = np.random.default_rng(0)
    X, Y, labels = (part[:40] for part in centred)
    S = (labels.astype(int) @ labels.T > 0).astype(float)
    sides = []
    for view in (X, Y):
        Z = unit_rows(view)
        sides.append(Side(Z @ Z.T, rng.choice([-1.0, 1.0], size=(5, 40))))
        sides[-1].update_weights()
    return sides, Link(S), S


def definition(sides, link):
    """The log posterior summed term by term, without the constants of the normal densities."""
    total = 0.0
    for side in sides:
        upper, own = np.triu_indices(len(side.S)), np.triu_indices(len(side.W))
        error = (side.S - side.U.T @ side.W @ side.U)[upper]
        total += (-(error**2) / (2 * side.theta) - np.log(side.theta) / 2).sum()
        total += (-(side.W[own] ** 2) / (2 * side.phi) - np.log(side.phi) / 2).sum()
        total += sum((SHAPE - 1) * np.log(1 / v) - RATE / v for v in (side.theta, side.phi))
    p = 1 / (1 + np.exp(-link.w * sides[0].U.T @ sides[1].U))
    total += (link.S * np.log(p) + (1 - link.S) * np.log(1 - p)).sum()
    total += -(link.w**2) / (2 * link.phi) - np.log(link.phi) / 2
    return total + (SHAPE - 1) * np.log(1 / link.phi) - RATE / link.phi


def test_log_posterior_is_the_definition(model):
    sides, link, _ = model
    assert log_posterior(sides, link) == pytest.approx(definition(sides, link), rel=1e-12)


def test_no_block_lowers_the_log_posterior(model):
    sides, link, S = model
    value = definition(sides, link)
    for _ in range(4):
        for side, other, shared in ((sides[0], sides[1], S), (sides[1], sides[0], S.T)):
            for update in (
                side.update_weights,
                side.update_phi,
                lambda side=side, other=other, shared=shared: side.update_codes(other.U, shared, link.w),
                side.update_theta,
                lambda: link.update(sides[0].U.T @ sides[1].U),
            ):
                update()
                before, value = value, definition(sides, link)
                assert value >= before - 1e-9 * abs(before)


def test_weights_are_the_maximiser(model):
    sides, link, _ = model
    side = sides[0]
    np.testing.assert_array_equal(side.W, side.W.T)
    best = definition(sides, link)
    kept, rng = side.W, np.random.default_rng(0)
    for _ in range(20):
        move = rng.normal(size=kept.shape) * 1e-3
        side.W = kept + move + move.T
        assert definition(sides, link) < best
    side.W = kept


def test_flips_gain_what_they_say(model):
    sides, link, S = model
    side, other = sides
    base = definition(sides, link)
    for i in (0, 17, 39):
        said = side._flip_gains(i, side.W @ side.U, other.U, S[i], link.w)
        for k in range(5):
            side.U[k, i] *= -1
            assert definition(sides, link) - base == pytest.approx(said[k], abs=1e-8)
            side.U[k, i] *= -1


def test_history_never_drops(vectors):
    model = MLBE(bits=8, landmarks=100).fit(vectors)
    values = [row["log_posterior"] for row in model.history_]
    assert (np.diff(values) >= -1e-9 * abs(values[-1])).all()


def test_new_items_take_the_best_signs_one_bit_at_a_time(vectors):
    model = MLBE(bits=6, landmarks=100).fit(vectors)
    codes = model.encode(image=vectors.image).astype(float)
    view = unit_rows(vectors.image.values - model.means_["image"])
    s, M = view @ model.points_["image"].T, model.maps_["image"]
    cost = ((s - codes @ M) ** 2).sum(axis=1)
    better = 0
    for k in range(6):
        flipped = codes.copy()
        flipped[:, k] *= -1
        better += (((s - flipped @ M) ** 2).sum(axis=1) < cost - 1e-9).sum()
    assert better <= 3  # all but a few have settled after the passes


@pytest.mark.parametrize("wrong", [{"landmarks": 1}, {"sweeps": 0}])
def test_settings_outside_what_makes_sense(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        MLBE(**wrong)
