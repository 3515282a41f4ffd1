"""SCM: each bit against the definition, with S formed."""

import numpy as np
import pytest
from scipy.linalg import eigh

from dcmh.data import Dataset
from dcmh.errors import ParameterError
from dcmh.methods.cca import CCA
from dcmh.methods.scm import RIDGE, SCM


def definition(centred):
    X, Y, labels = centred
    L = labels / np.linalg.norm(labels, axis=1, keepdims=True)
    return X, Y, 2 * L @ L.T - 1


def eigenpairs(X, Y, R):
    """All pairs of (R Cyy^-1 R') w = e Cxx w, largest e first."""
    Cxx, Cyy = X.T @ X + RIDGE * np.eye(X.shape[1]), Y.T @ Y + RIDGE * np.eye(Y.shape[1])
    e, W = eigh(R @ np.linalg.solve(Cyy, R.T), Cxx)
    return e[::-1], W[:, ::-1]


def sign(z):
    return np.where(z >= 0, 1.0, -1.0)


def test_each_bit_leads_the_residual_of_the_definition(vectors, centred):
    X, Y, S = definition(centred)
    model = SCM(bits=10).fit(vectors)
    residual = 10 * S  # the whole (n, n) matrix
    assert len(model.eigenvalues_) == 10
    for bit in range(10):
        e, W = eigenpairs(X, Y, X.T @ residual @ Y)
        np.testing.assert_allclose(model.eigenvalues_[bit], e[0], rtol=1e-8)
        wx, wy = model.weights_["image"][:, bit], model.weights_["text"][:, bit]
        assert abs(np.corrcoef(X @ wx, X @ W[:, 0])[0, 1]) > 1 - 1e-9
        residual = residual - np.outer(sign(X @ wx), sign(Y @ wy))


def test_orthogonal_takes_the_leading_directions_at_once(vectors, centred):
    X, Y, S = definition(centred)
    model = SCM(bits=6, orthogonal=True).fit(vectors)
    e, W = eigenpairs(X, Y, 6 * X.T @ S @ Y)
    np.testing.assert_allclose(model.eigenvalues_, e[:6], rtol=1e-8)
    inner = np.abs(model.weights_["image"].T @ (X.T @ X + RIDGE * np.eye(24)) @ W[:, :6])
    np.testing.assert_allclose(inner, np.eye(6), atol=1e-6)
    with pytest.raises(ParameterError, match="orthogonal"):
        SCM(bits=21, orthogonal=True).fit(vectors)


def test_when_the_residual_is_used_up_cca_directions_follow(vectors):
    shuffled = np.random.default_rng(0).permutation(vectors.labels)  # labels that the features cannot explain
    data = Dataset(vectors.columns, labels=shuffled)
    model, cca = SCM(bits=30).fit(data), CCA(bits=20).fit(data)
    used = len(model.eigenvalues_)
    assert 0 < used < 10
    assert (np.diff(model.eigenvalues_) <= 0).all()
    for name in ("image", "text"):
        assert_parallel(model.weights_[name][:, 29], cca.weights_[name][:, 0])  # the last bit, the first direction
        assert_parallel(model.weights_[name][:, 10], cca.weights_[name][:, 19])
        assert_parallel(model.weights_[name][:, 9], cca.weights_[name][:, 0])  # again from the first


def assert_parallel(a, b):
    assert abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b) > 1 - 1e-6
