"""CVH: its general form against CCA, and against its objective."""

import numpy as np
import pytest

from dcmh.data import Dataset
from dcmh.data.dataset import similarity
from dcmh.errors import DataError, ParameterError
from dcmh.methods._solvers import whitener
from dcmh.methods.cca import CCA
from dcmh.methods.cvh import CVH, joint_directions, neighbours


def test_pairs_are_cca(vectors):
    cvh, cca = CVH(bits=8, ridge=0.5).fit(vectors), CCA(bits=8, ridge=0.5).fit(vectors)
    for name in ("image", "text"):
        np.testing.assert_array_equal(cvh.weights_[name], cca.weights_[name])


def test_general_form_with_identity_affinity_is_cca(vectors, centred):
    X, Y, _ = centred
    Tx, Ty = whitener(X, 0), whitener(Y, 0)
    a, b, mu = joint_directions(X @ Tx, Y @ Ty, X @ Tx, Y @ Ty, np.ones(len(X)))
    cca = CCA(bits=8, ridge=0).fit(vectors)
    np.testing.assert_allclose(1 - mu[:8], cca.correlations_[:8], atol=1e-9)
    for found, weights in ((Tx @ a, cca.weights_["image"]), (Ty @ b, cca.weights_["text"])):
        # The joint constraint halves the squared length; columns have any sign.
        ratio = found[:, :8] / weights
        np.testing.assert_allclose(np.abs(ratio), np.sqrt(0.5), atol=1e-6)


def test_label_affinity_in_blocks(centred):
    X, _, labels = centred
    W = (labels.astype(int) @ labels.T > 0).astype(float)
    degree, near = neighbours(np.tile(labels, (5, 1)), np.tile(X, (5, 1)))  # 1,500 rows: more than one block
    np.testing.assert_allclose(degree[:300], 5 * W.sum(axis=1))
    np.testing.assert_allclose(near[-300:], 5 * W @ X)
    np.testing.assert_array_equal(W > 0, similarity(labels, labels))


def test_label_form_minimises_its_objective(vectors, centred):
    X, Y, labels = centred
    W = (labels.astype(int) @ labels.T > 0).astype(float)
    D = np.diag(W.sum(axis=1))
    M = 2 * (D - W) + D
    model = CVH(bits=6, similarity="labels", ridge=1e-9).fit(vectors)
    A, B = model.weights_["image"], model.weights_["text"]

    def objective(A, B):
        value = np.trace(A.T @ X.T @ M @ X @ A) + np.trace(B.T @ Y.T @ M @ Y @ B)
        return value - 2 * np.trace(A.T @ X.T @ W @ Y @ B)

    np.testing.assert_allclose(A.T @ X.T @ X @ A + B.T @ Y.T @ Y @ B, np.eye(6), atol=1e-6)
    rng = np.random.default_rng(0)
    stacked = np.block([[X, np.zeros_like(Y)], [np.zeros_like(X), Y]])
    for _ in range(20):
        other = np.vstack([A, B]) + 0.05 * np.linalg.norm(A) * rng.normal(size=(44, 6))
        other = other @ np.linalg.inv(np.linalg.cholesky(other.T @ stacked.T @ stacked @ other)).T
        assert objective(other[:24], other[24:]) > objective(A, B)


def test_labels_must_be_there_when_asked_for(vectors):
    with pytest.raises(DataError, match="similarity='pairs'"):
        CVH(bits=4, similarity="labels").fit(Dataset(vectors.columns))
    with pytest.raises(ParameterError, match="similarity"):
        CVH(similarity="captions")
