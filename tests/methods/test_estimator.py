"""scikit-learn's own checks, on a transformer of every method; and a pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dcmh import methods
from dcmh.errors import NotFittedError, ParameterError
from dcmh.methods.estimator import HashTransformer

FAST = {
    "dcmh": {"epochs": 2, "hidden": 8, "device": "cpu", "validation": 0.0},
    "cmssh": {"pairs": 50},
    "crh": {"pairs": 50},
    "mlbe": {"landmarks": 10, "sweeps": 2},
    "seph": {"base_count": 10, "folds": 2},
    "seph-linear": {"folds": 2},
}


ON_VECTORS = [name for name in methods.available() if name != "semantic"]  # which learns from texts only


def expected_failures(estimator):
    """The checks that a method may fail, each with the reason."""
    if type(estimator.hasher).__name__ in ("CCA", "CVH"):
        return {"check_fit2d_1feature": "has as many bits as features at most; the message says so in other words"}
    return {}


@parametrize_with_checks(
    [HashTransformer(methods.get(name)(bits=2, **FAST.get(name, {}))) for name in ON_VECTORS],
    expected_failed_checks=expected_failures,
)
def test_as_scikit_learn_expects(estimator, check):
    check(estimator)


def test_pipeline_and_search_of_parameters():
    X, y = make_blobs(120, 6, centers=4, cluster_std=3, random_state=0)
    pipeline = make_pipeline(
        StandardScaler(), HashTransformer(methods.get("ridge")(bits=8)), KNeighborsClassifier(3, metric="hamming")
    )
    search = GridSearchCV(pipeline, {"hashtransformer__hasher__bits": [2, 16]}, cv=3).fit(X, y)
    assert search.best_params_ == {"hashtransformer__hasher__bits": 16}
    assert search.best_score_ > 0.6
    assert pipeline[1].hasher.bits == 8  # the search works on copies
    assert "hasher=Ridge(bits=8)" in repr(pipeline[1])


def test_several_labels_and_data_frames():
    X = np.random.default_rng(0).random((20, 3), np.float32)
    transformer = HashTransformer(methods.get("scm")(bits=4)).set_output(transform="pandas")
    codes = transformer.fit_transform(X, (X > 0.5).astype(int))
    assert list(codes.columns) == [f"hashtransformer{bit}" for bit in range(4)]
    with pytest.raises(ValueError, match="SCM learns from labels"):
        transformer.fit(X)


@pytest.mark.parametrize("name", methods.available())
def test_methods_are_cloned_changed_and_shown(name):
    model = methods.get(name)(bits=16, seed=3)
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params() == model.parameters
    assert repr(copy) == f"{type(model).__name__}(bits=16, seed=3)"
    assert copy.set_params(bits=32) is copy
    assert (copy.bits, model.bits) == (32, 16)
    with pytest.raises(ParameterError, match="bits"):
        copy.set_params(bits=-1)
    with pytest.raises(ParameterError, match=r"no parameter 'colour'. It has: bits"):
        copy.set_params(colour="red")
    assert copy.bits == 32


def test_a_changed_model_must_learn_again():
    X = np.random.default_rng(0).random((20, 3), np.float32)
    transformer = HashTransformer(methods.get("cca")(bits=2)).fit(X)
    model = transformer.hasher_
    model.encode(x=X)
    model.set_params(bits=3)
    with pytest.raises(NotFittedError):
        model.encode(x=X)
