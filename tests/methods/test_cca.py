"""CCA against scikit-learn's, and its defining equations."""

import numpy as np
import pytest
from sklearn import cross_decomposition

from dcmh.data import Dataset
from dcmh.errors import ParameterError
from dcmh.methods.cca import CCA


def cosines(A, B):
    """Cosines of the angles between the spans of the columns."""
    return np.linalg.svd(np.linalg.qr(A)[0].T @ np.linalg.qr(B)[0], compute_uv=False)


@pytest.fixture(scope="module")
def model(vectors):
    return CCA(bits=5, ridge=1e-9).fit(vectors)


def test_same_subspaces_and_correlations_as_scikit_learn(model, centred):
    X, Y, _ = centred
    oracle = cross_decomposition.CCA(n_components=5, scale=False, max_iter=100_000, tol=1e-14).fit(X, Y)
    assert cosines(model.weights_["image"], oracle.x_rotations_).min() > 1 - 1e-6
    assert cosines(model.weights_["text"], oracle.y_rotations_).min() > 1 - 1e-6
    u, v = oracle.transform(X, Y)
    expected = [np.corrcoef(u[:, i], v[:, i])[0, 1] for i in range(5)]
    np.testing.assert_allclose(model.correlations_[:5], expected, atol=1e-6)


def test_solves_the_generalised_eigenproblem(vectors, centred):
    X, Y, _ = centred
    model = CCA(bits=20, ridge=3.0).fit(vectors)
    Wx, Wy, rho = model.weights_["image"], model.weights_["text"], model.correlations_
    Cxx, Cyy, Cxy = X.T @ X + 3 * np.eye(24), Y.T @ Y + 3 * np.eye(20), X.T @ Y
    np.testing.assert_allclose(Wx.T @ Cxx @ Wx, np.eye(20), atol=1e-9)
    np.testing.assert_allclose(Cxy @ np.linalg.solve(Cyy, Cxy.T) @ Wx, Cxx @ Wx * rho**2, atol=1e-7)
    np.testing.assert_allclose(Wy, np.linalg.solve(Cyy, Cxy.T) @ Wx / rho, atol=1e-9)
    assert (np.diff(rho) <= 0).all()


def test_rank_counts_not_columns(vectors):
    text = np.repeat(vectors.text.values[:, :3], 4, axis=1)
    data = Dataset.from_arrays(image=vectors.image.values, text=text)
    assert CCA(bits=3).fit(data).encode(text=text).shape == (300, 3)
    with pytest.raises(ParameterError, match=r"text has 3, so 4 bits are too many. Ask for at most 3"):
        CCA(bits=4).fit(data)
