"""SePH: the divergence and its gradient against the definition, and both stages' solvers against others."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.cluster import KMeans
from sklearn.linear_model import Ridge

from dcmh.errors import ParameterError
from dcmh.methods._solvers import logistic_weights, ridge_weights
from dcmh.methods._two_views import unit_rows
from dcmh.methods.seph import SePH, centres, divergence, kernel
from dcmh.methods.seph_linear import SePHLinear


@pytest.fixture
def relaxed(vectors):
    L = unit_rows(vectors.labels[:60])
    return np.random.default_rng(0).normal(size=(60, 5)), L


def definition(H, L):
    """KL(P || Q) with both matrices formed."""
    P = L @ L.T
    np.fill_diagonal(P, 0)
    P /= P.sum()
    q = 1 / (1 + ((H[:, None] - H[None]) ** 2).sum(axis=2) / 4)
    np.fill_diagonal(q, 0)
    Q = q / q.sum()
    seen = P > 0
    return (P[seen] * np.log(P[seen] / Q[seen])).sum()


def test_divergence_is_the_definition_up_to_a_constant(relaxed):
    H, L = relaxed
    differences = [definition(M, L) - divergence(M, L)[0] for M in (H, 2 * H, np.sign(H))]
    np.testing.assert_allclose(differences, differences[0], rtol=1e-10)


def test_gradient_against_finite_differences(relaxed):
    H, L = relaxed
    gradient = divergence(H, L)[1]
    rng = np.random.default_rng(1)
    for i, k in zip(rng.integers(60, size=30), rng.integers(5, size=30), strict=True):
        step = np.zeros_like(H)
        step[i, k] = 1e-5
        slope = (definition(H + step, L) - definition(H - step, L)) / 2e-5
        np.testing.assert_allclose(gradient[i, k], slope, rtol=1e-5, atol=1e-9)


def test_blocks_and_single_precision_give_the_same(vectors):
    L = unit_rows(np.tile(vectors.labels, (4, 1)))  # 1,200 rows: more than one block
    H = np.random.default_rng(0).normal(size=(1200, 5))
    cost, gradient = divergence(H, L)
    single, gradient32 = divergence(H.astype(np.float32), L.astype(np.float32))
    P = L @ L.T
    np.fill_diagonal(P, 0)
    q = 1 / (1 + ((H[:, None] - H[None]) ** 2).sum(axis=2) / 4)
    np.fill_diagonal(q, 0)
    np.testing.assert_allclose(cost, -(P / P.sum() * np.log(np.where(q > 0, q, 1))).sum() + np.log(q.sum()))
    np.testing.assert_allclose(single, cost, rtol=1e-5)
    np.testing.assert_allclose(gradient32, gradient, atol=1e-4 * np.abs(gradient).max())


def test_stage_1_lowers_the_divergence_and_follows_labels(vectors):
    model = SePH(bits=16).fit(vectors)
    costs = [row["objective"] for row in model.history_]
    assert len(costs) == 100
    assert costs[-1] < costs[0]
    codes = model._codes(unit_rows(vectors.labels).astype(np.float32), np.random.default_rng(0))
    similar = vectors.labels.astype(int) @ vectors.labels.T > 0
    inner = codes @ codes.T
    assert inner[similar].mean() > inner[~similar].mean() + 4


def test_logistic_weights_against_l_bfgs():
    rng = np.random.default_rng(0)
    F = rng.normal(size=(200, 30)) * np.geomspace(10, 0.01, 30)
    signs = np.where(F @ rng.normal(size=(30, 3)) + rng.normal(size=(200, 3)) > 0, 1.0, -1.0)
    found = logistic_weights(F, signs, 0.01, tolerance=1e-12)
    for bit in range(3):

        def loss(a, h=signs[:, bit]):
            margin = h * (F @ a)
            slope = -F.T @ (h / (1 + np.exp(margin))) + 0.02 * a
            return np.logaddexp(0, -margin).sum() + 0.01 * a @ a, slope

        oracle = minimize(loss, np.zeros(30), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14})
        assert loss(found[:, bit])[0] <= oracle.fun * (1 + 1e-8)
        assert np.abs(loss(found[:, bit])[1]).max() < 1e-3


def test_hash_functions_minimise_the_penalised_loss(vectors):
    model = SePH(bits=4, base_count=50).fit(vectors)
    predictor = model.predictors_["image"]
    view = vectors.image.values.astype(np.float64)
    K, K0 = kernel(view, predictor), kernel(predictor["bases"], predictor)
    squares = ((view[:, None] - view[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(predictor["scale"], squares.mean())
    np.testing.assert_allclose(K[3], np.exp(-((view[3] - predictor["bases"]) ** 2).sum(axis=1) / squares.mean()))
    codes = model._codes(unit_rows(vectors.labels).astype(np.float32), np.random.default_rng(0))
    w, h = predictor["weights"][:, 0], codes[:, 0]
    slope = -K.T @ (h / (1 + np.exp(h * (K @ w)))) + 0.02 * K0 @ w
    assert np.abs(slope).max() < 1e-2


def test_k_means_bases(vectors):
    view = vectors.image.values.astype(np.float64)
    found = centres(view, view[:8])
    oracle = KMeans(8, init=view[:8], n_init=1, algorithm="lloyd", tol=0).fit(view)
    np.testing.assert_allclose(found, oracle.cluster_centers_, atol=1e-4)
    model = SePH(bits=8, bases="kmeans", base_count=40).fit(vectors)
    assert model.predictors_["text"]["bases"].shape == (40, 20)


def test_ridge_strength_by_cross_validation(centred):
    X, _, labels = centred
    rng = np.random.default_rng(0)
    targets = np.column_stack([labels[:, 0], rng.normal(size=300)])
    strengths, folds = np.array([0.1, 10.0, 1000.0]), rng.permutation(np.arange(300) % 5)
    weights, chosen = ridge_weights(X, targets, strengths, folds)
    errors = np.zeros((3, 2))
    for i, strength in enumerate(strengths):
        for fold in range(5):
            out = folds == fold
            oracle = Ridge(strength, fit_intercept=False).fit(X[~out], targets[~out])
            errors[i] += ((oracle.predict(X[out]) - targets[out]) ** 2).sum(axis=0)
    np.testing.assert_array_equal(chosen, strengths[errors.argmin(axis=0)])
    for i, strength in enumerate(chosen):
        oracle = Ridge(strength, fit_intercept=False).fit(X, targets[:, i])
        np.testing.assert_allclose(weights[:, i], oracle.coef_, atol=1e-8)


def test_strengths_that_tie_give_the_middle_one():
    X = np.vstack([np.eye(2), np.eye(2)])
    _, chosen = ridge_weights(X, np.zeros((4, 1)), 10.0 ** np.arange(-3, 4), np.array([0, 0, 1, 1]))
    assert chosen == [1.0]


def test_linear_is_an_option_and_a_method(vectors):
    option, method = SePH(bits=8, linear=True).fit(vectors), SePHLinear(bits=8).fit(vectors)
    for name in ("image", "text"):
        np.testing.assert_array_equal(option.outputs(**{name: vectors[name]}), method.outputs(**{name: vectors[name]}))


@pytest.mark.parametrize("wrong", [{"bases": "all"}, {"base_count": 0}, {"folds": 1}, {"iterations": 0}])
def test_settings_outside_what_makes_sense(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        SePH(**wrong)
